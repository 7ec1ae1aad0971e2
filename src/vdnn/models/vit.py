"""Vision Transformer, ViT-B/16 (Dosovitskiy et al., ICLR 2021), with the dropout of its ImageNet recipe.

A learned position per patch ties the network to one image size.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from vdnn.models.losses import cross_entropy
from vdnn.models.samples import Images
from vdnn.models.spec import ModelSpec, Toy
from vdnn.models.transformer import INITIAL_STD, Block, normal_initialize

DROPOUT = 0.1  # the paper's table 3, ViT-B/16 on ImageNet


class VisionTransformer(nn.Module):
    """An image becomes a row of patches with a class token in front; the class token's last state is classified."""

    def __init__(
        self,
        *,
        image: int = 224,
        patch: int = 16,
        width: int = 768,
        depth: int = 12,
        heads: int = 12,
        num_classes: int = 1000,
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.empty(1, (image // patch) ** 2 + 1, width).normal_(std=INITIAL_STD))
        self.dropout = nn.Dropout(DROPOUT)
        self.blocks = nn.Sequential(*(block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, num_classes)
        normal_initialize(self)

    def forward(self, images: Tensor) -> Tensor:
        patches_bld = self.patches(images).flatten(2).transpose(1, 2)
        token = self.class_token.expand(images.shape[0], -1, -1)
        x_bld = self.dropout(torch.cat([token, patches_bld], dim=1) + self.positions)
        return self.head(self.norm(self.blocks(x_bld))[:, 0])


def block(width: int, heads: int) -> Block:
    return Block(width, heads, activation=nn.GELU, attention_dropout=0.0, dropout=DROPOUT, causal=False, eps=1e-6)


SPECS = (
    ModelSpec(
        name="vit",
        title="Vision Transformer ViT-B/16",
        source="Dosovitskiy et al. 2021, torchvision's vit_b_16",
        num_parameters=86_567_656,
        build=VisionTransformer,
        sample=Images(224),
        loss=cross_entropy,
        toy=Toy(
            partial(VisionTransformer, image=32, patch=8, width=32, depth=2, heads=4, num_classes=10), Images(32, 10)
        ),
    ),
)
