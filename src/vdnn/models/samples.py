"""What the networks are fed: random images or tokens of the right shape, on the current default device.

Enters: a batch. Leaves: `(*inputs, target)`. The one idea: a sampler is a frozen value, so a spec can say its sizes,
and asking for another image size is a new value rather than a changed network.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vdnn.errors import InvalidInput


@dataclass(frozen=True)
class Images:
    """Square images and their classes. `smallest` is the least size the network digests; None: only `size` fits."""

    size: int
    num_classes: int = 1000
    smallest: int | None = None
    channels: int = 3

    def __call__(self, batch: int) -> tuple[Tensor, ...]:
        return self.images(batch), torch.randint(self.num_classes, (batch,))

    def images(self, batch: int) -> Tensor:
        return torch.randn(batch, self.channels, self.size, self.size)

    def at(self, name: str, size: int) -> Images:
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise InvalidInput(f"an image size is a whole number of pixels, not {size!r}.")
        if self.smallest is None and size != self.size:
            raise InvalidInput(f"{name} has one input size, {self.size}x{self.size}: image_size={size} does not apply.")
        if self.smallest is not None and size < self.smallest:
            raise InvalidInput(f"{name} needs images of {self.smallest}x{self.smallest} at least, not {size}x{size}.")
        return replace(self, size=size)


@dataclass(frozen=True)
class Tokens:
    """A piece of text and, as the target, the token that follows each of its tokens."""

    vocabulary: int
    length: int

    def __call__(self, batch: int) -> tuple[Tensor, ...]:
        return self.tokens(batch), self.tokens(batch)

    def tokens(self, batch: int) -> Tensor:
        return torch.randint(self.vocabulary, (batch, self.length))
