"""A network whose maps are all of one size, so that what a budget leaves room for can be counted in maps."""

from __future__ import annotations

import torch
from torch import Tensor, nn

MAP_NBYTES = 1 << 20
ROWS, WIDTH, DEPTH = 1024, 256, 10


class Chain(nn.Module):
    """`DEPTH` linear layers, each followed by a tanh whose output backward needs."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))

    def forward(self, rows: Tensor) -> Tensor:
        for layer in self.layers:
            rows = torch.tanh(layer(rows))
        return rows.square().mean()


def chain(where: str = "vdev") -> tuple[Chain, tuple[Tensor]]:
    torch.manual_seed(0)
    return Chain().to(where), (torch.randn(ROWS, WIDTH).to(where),)
