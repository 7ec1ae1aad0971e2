"""Small random programs of layers, views and in-place writes, with several outputs; a seed says which.

Enters: a seed. Leaves: a module over images of shape (2, 4, 8, 8) whose outputs are tensors of any layout: whole maps,
parts of one, transposed slices, losses. Every op keeps the shape, so that any may follow any.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor, nn

from where import seeded

BATCH, CHANNELS, SIDE = 2, 4, 8


def program_images(seed: int) -> Tensor:
    return torch.randn(BATCH, CHANNELS, SIDE, SIDE, generator=seeded(seed))


def _conv(kernel: int = 3, **options: object) -> nn.Module:
    return nn.Conv2d(CHANNELS, CHANNELS, kernel, **options)  # type: ignore[arg-type]


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "conv": lambda: _conv(padding=1),
    "conv 1x1": lambda: _conv(1, bias=False),
    "conv, circular": lambda: _conv(padding=1, padding_mode="circular"),
    "conv, reflected": lambda: _conv(padding=1, padding_mode="reflect"),
    "conv, grouped": lambda: _conv(padding=1, groups=2),
    "conv, transposed": lambda: nn.ConvTranspose2d(CHANNELS, CHANNELS, 3, padding=1),
    "batch norm": lambda: nn.BatchNorm2d(CHANNELS),
    "group norm": lambda: nn.GroupNorm(2, CHANNELS),
    "layer norm": lambda: nn.LayerNorm(SIDE),
    "instance norm": lambda: nn.InstanceNorm2d(CHANNELS, affine=True),
    "dropout": lambda: nn.Dropout(0.3),
    "dropout2d": lambda: nn.Dropout2d(0.4),
    "linear": lambda: nn.Linear(SIDE, SIDE),
}


def _put_channel(x: Tensor) -> Tensor:
    y = x * 1
    y[:, 0] = y[:, 1] * 2
    return y


def _put_columns(x: Tensor) -> Tensor:
    y = x * 2
    y[..., 1:3] = x[..., 2:4].sigmoid()
    return y


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "unfold, mean": lambda x: F.unfold(x, 3, padding=1).view(BATCH, CHANNELS, 9, -1).mean(2).view(x.shape),
    "unfold, fold": lambda x: F.fold(F.unfold(x, 2, stride=2), (SIDE, SIDE), 2, stride=2),
    "unfold, fold, overlapping": lambda x: F.fold(F.unfold(x, 3, padding=1), (SIDE, SIDE), 3, padding=1) / 9,
    "pad, average": lambda x: F.avg_pool2d(F.pad(x, (1, 1, 1, 1)), 3, 1),
    "pad around, average": lambda x: F.avg_pool2d(F.pad(x, (1, 1, 1, 1), mode="circular"), 3, 1),
    "pad by edges, max": lambda x: F.max_pool2d(F.pad(x, (0, 2, 2, 0), mode="replicate"), 3, 1),
    "pool and back": lambda x: F.interpolate(F.max_pool2d(x, 2), scale_factor=2),
    "adaptive pool and back": lambda x: F.adaptive_avg_pool2d(x, 4).repeat_interleave(2, 2).repeat_interleave(2, 3),
    "relu": F.relu,
    "relu_": lambda x: F.relu(x * 1, inplace=True),
    "gelu": F.gelu,
    "softmax": lambda x: x.softmax(1),
    "log-softmax": lambda x: x.flatten(2).log_softmax(-1).view(x.shape),
    "mul_, add_": lambda x: x.clone().mul_(0.5).add_(1),
    "halves swapped": lambda x: torch.cat(x.chunk(2, 1)[::-1], 1),
    "halves multiplied": lambda x: torch.cat([x.chunk(2, 1)[0] * x.chunk(2, 1)[1], x[:, ::2]], 1),
    "transposed": lambda x: x.transpose(2, 3).tanh(),
    "permuted and copied": lambda x: x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2),
    "rolled": lambda x: x.roll(1, 2),
    "a channel put": _put_channel,
    "columns put": _put_columns,
    "normalized": lambda x: F.normalize(x, dim=1),
    "windows": lambda x: x.unfold(3, 2, 2).amax(-1).repeat(1, 1, 1, 2),
}

JOINS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": torch.add,
    "multiply": torch.mul,
    "gate": lambda a, b: a.sigmoid() * b,
    "add in place": lambda a, b: (a * 1).add_(b),
    "stacked": lambda a, b: torch.stack([a, b]).mean(0),
}

OUTPUTS: dict[str, Callable[[Tensor], tuple[Tensor, ...]]] = {
    "whole": lambda x: (x,),
    "chunks": lambda x: x.chunk(2, 1),
    "a slice": lambda x: (x[:, :, 1::2],),
    "a transposed slice": lambda x: (x[:, 1:3].transpose(2, 3),),
    "the first half": lambda x: (x[:1],),
    "mean square": lambda x: (F.mse_loss(x, torch.zeros_like(x)),),
    "smooth": lambda x: (F.smooth_l1_loss(x, torch.ones_like(x)),),
    "a mean": lambda x: (x.mean(),),
    "a column": lambda x: (x[..., 0], x.amax((2, 3))),
}


class Program(nn.Module):
    """Each line takes what lines before it made: the last, mostly, and for joins one more."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        draw = random.Random(seed)
        self.layers = nn.ModuleDict()
        self.lines: list[tuple[str, int, int]] = []
        for number in range(draw.randint(3, 8)):
            kind = draw.choices(["layer", "function", "join"], [4, 5, 2])[0]
            name = draw.choice(sorted({"layer": LAYERS, "function": FUNCTIONS, "join": JOINS}[kind]))
            if kind == "layer":
                self.layers[str(number)] = LAYERS[name]()
            self.lines.append((name, draw.choice([number, number, draw.randint(0, number)]), draw.randint(0, number)))
        self.outputs = draw.sample(sorted(OUTPUTS), draw.randint(1, 3))

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        made = [images]
        for number, (name, one, other) in enumerate(self.lines):
            if str(number) in self.layers:
                made.append(self.layers[str(number)](made[one]))
            elif name in JOINS:
                made.append(JOINS[name](made[one], made[other]))
            else:
                made.append(FUNCTIONS[name](made[one]))
        # Each of a tensor of its own: where gradients meet at the border, their sums may be added up in another order.
        return tuple(output for name in self.outputs for output in OUTPUTS[name](made[-1] * 1))

    def __repr__(self) -> str:
        lines = [f"{number + 1} = {name}({one}, {other})" for number, (name, one, other) in enumerate(self.lines)]
        return "\n".join((*lines, f"outputs {self.outputs}"))
