"""DenseNet-121 (Huang et al., CVPR 2017): every layer reads the concatenation of all layers before it in its block.

Concatenating copies: feature maps grow with the square of a block's depth, which makes it the memory papers'
favourite torment.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from vdnn.models.conv_blocks import he_initialize
from vdnn.models.losses import cross_entropy
from vdnn.models.samples import Images
from vdnn.models.spec import ModelSpec, Toy

BOTTLENECK = 4  # channels of a layer's 1x1 convolution over its growth
SMALLEST_IMAGE = 64  # leaves 2x2: batch normalization needs more than one value per channel even for one image


class DenseLayer(nn.Sequential):
    """Normalize and ReLU before each convolution: 1x1 down to the bottleneck, then 3x3 to `growth` new channels."""

    def __init__(self, inputs: int, growth: int) -> None:
        inner = BOTTLENECK * growth
        super().__init__(
            *norm_relu(inputs),
            nn.Conv2d(inputs, inner, 1, bias=False),
            *norm_relu(inner),
            nn.Conv2d(inner, growth, 3, padding=1, bias=False),
        )


class DenseBlock(nn.Module):
    def __init__(self, count: int, inputs: int, growth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DenseLayer(inputs + growth * i, growth) for i in range(count))

    def forward(self, x: Tensor) -> Tensor:
        maps = [x]
        for layer in self.layers:
            maps.append(layer(torch.cat(maps, dim=1)))
        return torch.cat(maps, dim=1)


class DenseNet(nn.Module):
    """`counts[b]` layers in block b; between blocks a transition halves the channels and the image."""

    def __init__(self, counts: Sequence[int] = (6, 12, 24, 16), *, growth: int = 32, num_classes: int = 1000) -> None:
        super().__init__()
        channels = 2 * growth
        self.stem = nn.Sequential(
            nn.Conv2d(3, channels, 7, 2, 3, bias=False), *norm_relu(channels), nn.MaxPool2d(3, 2, padding=1)
        )
        self.blocks = nn.Sequential()
        for block, count in enumerate(counts):
            if block > 0:
                self.blocks.append(transition(channels))
                channels //= 2
            self.blocks.append(DenseBlock(count, channels, growth))
            channels += count * growth
        pooled = (nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Sequential(*norm_relu(channels), *pooled, nn.Linear(channels, num_classes))
        he_initialize(self)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(images)))


def norm_relu(channels: int) -> tuple[nn.Module, nn.Module]:
    return nn.BatchNorm2d(channels), nn.ReLU(inplace=True)


def transition(channels: int) -> nn.Sequential:
    halve = nn.Conv2d(channels, channels // 2, 1, bias=False)
    return nn.Sequential(*norm_relu(channels), halve, nn.AvgPool2d(2, 2))


SPECS = (
    ModelSpec(
        name="densenet121",
        title="DenseNet-121",
        source="Huang et al. 2017, torchvision",
        num_parameters=7_978_856,
        build=DenseNet,
        sample=Images(224, smallest=SMALLEST_IMAGE),
        loss=cross_entropy,
        toy=Toy(partial(DenseNet, (2, 3, 2, 2), growth=8, num_classes=10), Images(64, 10, SMALLEST_IMAGE)),
    ),
)
