"""The pre-norm transformer block that GPT-2 and ViT share, on PyTorch's scaled dot-product attention.

Letters after a name are its dimensions: B batch, L positions, D width, H heads, E width of one head.
"""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F  # noqa: N812  the name everyone knows it by
from torch import Tensor, nn

INITIAL_STD = 0.02  # GPT-2's and ViT's normal initialization


class SelfAttention(nn.Module):
    def __init__(self, width: int, heads: int, *, dropout: float, causal: bool) -> None:
        super().__init__()
        assert width % heads == 0, f"{width} channels do not divide among {heads} heads"
        self.heads, self.dropout, self.causal = heads, dropout, causal
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x_bld: Tensor) -> Tensor:
        batch, length, width = x_bld.shape
        qkv = self.qkv(x_bld).view(batch, length, 3, self.heads, width // self.heads)
        q_bhle, k_bhle, v_bhle = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q_bhle, k_bhle, v_bhle, dropout_p=dropout, is_causal=self.causal)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    """Attention, then two linear layers four times as wide; each behind a normalization, dropped out, and added."""

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        activation: Callable[[], nn.Module],
        attention_dropout: float,
        dropout: float,
        causal: bool,
        eps: float,
    ) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=eps), nn.LayerNorm(width, eps=eps)
        self.attention = SelfAttention(width, heads, dropout=attention_dropout, causal=causal)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), activation(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x_bld: Tensor) -> Tensor:
        x_bld = x_bld + self.dropout(self.attention(self.norm1(x_bld)))
        return x_bld + self.dropout(self.mlp(self.norm2(x_bld)))


def normal_initialize(network: nn.Module) -> None:
    for module in network.modules():
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=INITIAL_STD)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
