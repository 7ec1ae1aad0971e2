"""GPT-2 (Radford et al. 2019), the 124 M model: pre-norm, learned positions, tanh GELU, dropout 0.1, tied embeddings.

`gpt2(...)` makes the same network at any width, depth and length.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from vdnn.errors import InvalidInput
from vdnn.models.losses import token_cross_entropy
from vdnn.models.samples import Tokens
from vdnn.models.spec import ModelSpec, Toy, count_parameters
from vdnn.models.transformer import Block, normal_initialize

VOCABULARY = 50_257
HEAD_WIDTH = 64  # in every published GPT-2
DROPOUT = 0.1
NUM_PARAMETERS = 124_439_808


class GPT2(nn.Module):
    """Tokens (B, L) to logits (B, L, vocabulary), L at most `length`."""

    def __init__(
        self, *, width: int = 768, depth: int = 12, heads: int = 12, length: int = 1024, vocabulary: int = VOCABULARY
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.dropout = nn.Dropout(DROPOUT)
        self.blocks = nn.Sequential(*(causal_block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width, eps=1e-5)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        normal_initialize(self)

    def forward(self, tokens_bl: Tensor) -> Tensor:
        positions_l = torch.arange(tokens_bl.shape[1], device=tokens_bl.device)
        x_bld = self.dropout(self.tokens(tokens_bl) + self.positions(positions_l))
        return self.head(self.norm(self.blocks(x_bld)))


def causal_block(width: int, heads: int) -> Block:
    gelu = partial(nn.GELU, approximate="tanh")
    return Block(width, heads, activation=gelu, attention_dropout=DROPOUT, dropout=DROPOUT, causal=True, eps=1e-5)


def gpt2(*, width: int = 768, depth: int = 12, length: int = 1024, vocabulary: int = VOCABULARY) -> ModelSpec:
    """A GPT-2 of other proportions; its heads are 64 wide, so `width` is a multiple of 64."""
    if width < HEAD_WIDTH or width % HEAD_WIDTH:
        raise InvalidInput(
            f"the heads of a GPT-2 are {HEAD_WIDTH} wide, and width={width} is no multiple of {HEAD_WIDTH}."
        )
    build = partial(GPT2, width=width, depth=depth, heads=width // HEAD_WIDTH, length=length, vocabulary=vocabulary)
    published = (width, depth, length, vocabulary) == (768, 12, 1024, VOCABULARY)
    return ModelSpec(
        name="gpt2" if published else f"gpt2-{width}x{depth}-{length}",
        title=f"GPT-2, width {width}, {depth} blocks, {length} tokens",
        source="Radford et al. 2019; parameters " + ("as in the released model" if published else "counted"),
        num_parameters=NUM_PARAMETERS if published else count_parameters(build),
        build=build,
        sample=Tokens(vocabulary, length),
        loss=token_cross_entropy,
        toy=Toy(partial(GPT2, width=32, depth=2, heads=4, length=16, vocabulary=97), Tokens(97, 16)),
    )


SPECS = (gpt2(),)
