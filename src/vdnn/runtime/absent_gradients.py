"""Gradients of outputs that nobody used stay absent, as in eager mode.

Enters: the tangents of a backward, with None for each output that the loss does not hang on. Leaves: the tangents that
a program takes, and gradients with None where every way to an input comes from such an output. PyTorch would make zeros
of them before we see them (`absent_stay_absent` asks it not to): parameters that only feed an unused output would then
have zeros for gradients, and an optimizer would move them by weight decay or momentum, which it does not in eager mode.

A sum of a gradient and of zeros is the gradient, so a program that was traced with all tangents is right for any of
them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from math import prod
from typing import Any

import torch

from vdnn.torch_private import compiled_forward_of, tree_leaves

MAX_VIEWS = 4
"""How many views AOTAutograd makes again between what we return and what a caller gets: one or two."""


@dataclass(frozen=True)
class TracedTangent:
    """The gradient of an output, as it was traced."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize

    def zeros(self) -> torch.Tensor:
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=self.device).zero_()


@dataclass(frozen=True)
class Tangents:
    """The last arguments of a backward. `behind` has for each gradient the tangents that it depends on, one bit each,
    `left_out` those that a program does not take."""

    traced: tuple[TracedTangent, ...] = ()
    behind: tuple[int, ...] = ()
    left_out: int = 0

    @property
    def all(self) -> int:
        return (1 << len(self.traced)) - 1

    def nbytes_of(self, some: int) -> int:
        return sum(one.nbytes for number, one in enumerate(self.traced) if some >> number & 1)

    def given(self, args: list[Any]) -> list[torch.Tensor | None]:
        return args[len(args) - len(self.traced) :]

    def with_left_out(self, args: list[Any]) -> list[torch.Tensor | None]:
        """All tangents, if one came that is left out; else none, for who holds them holds their bytes."""
        given = self.given(args)
        came = sum(1 << number for number, one in enumerate(given) if one is not None)
        return given if came & self.left_out else []

    def fill(self, args: list[Any]) -> int:
        """Zeros for what is absent and taken. Which tangents are there, one bit each."""
        given = self.given(args)
        for number, traced in enumerate(self.traced):
            if given[number] is None and not self.left_out >> number & 1:
                args[number - len(given)] = traced.zeros()
        for number in reversed(range(len(given))):
            if self.left_out >> number & 1:
                del args[len(args) - 1 - self._taken_behind(number)]
        return sum(1 << number for number, one in enumerate(given) if one is not None)

    def _taken_behind(self, number: int) -> int:
        """How many of those behind it a program takes, when the left-out ones behind it are gone."""
        return sum(not self.left_out >> later & 1 for later in range(number + 1, len(self.traced)))

    def kept(self, gradients: Sequence[Any], present: int) -> Sequence[Any]:
        """None for a gradient that only comes from absent ones."""
        if present == self.all:
            return gradients
        return tuple(one if mask & present else None for one, mask in zip(gradients, self.behind, strict=True))


NO_TANGENTS = Tangents()
"""Of who does not say: all are there."""


def absent_stay_absent(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Have autograd hand over None for the gradients of outputs that nobody used. `forward` is AOTAutograd's."""

    @wraps(forward)
    def run(*args: Any, **kwargs: Any) -> Any:
        outputs = forward(*args, **kwargs)
        for node in {leaf.grad_fn for leaf in tree_leaves(outputs) if isinstance(leaf, torch.Tensor)}:
            ours = _compiled_node(node)
            if ours is not None:
                ours.set_materialize_grads(False)
        return outputs

    return run


def _compiled_node(node: Any) -> Any:
    """Our node behind an output: that of the output itself, or before the views of it. Functions of others, which an
    input may come from, are left alone."""
    for _ in range(MAX_VIEWS):
        if node is None or getattr(compiled_forward_of(node), "takes_absent", False):
            return node
        following = [one for one, _ in node.next_functions if one is not None]
        node = following[0] if len(following) == 1 else None
    return None
