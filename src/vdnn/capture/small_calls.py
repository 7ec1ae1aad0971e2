"""A call of an op, described without its tensors, and smaller calls that are like it.

Enters: an op's arguments. Leaves: a `Call`: of every tensor its shape, strides, type and device, of everything else
itself; and calls of the same op on fewer elements. The one idea: how a kernel lays its results out depends on which
sizes are equal, on which are 1 and on the order of the dims, hardly ever on how large they are. So sizes are replaced
by small ones: the same by the same, larger by larger, wherever they stand, in shapes and in numbers that say the same.
Where that breaks an arithmetic between sizes (those of a convolution's input and output) all are halved together until
they are small, or only the first dim is made small.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch

from vdnn.capture.dim_orders import in_order_of
from vdnn.hardware.where import indexed
from vdnn.torch_private import OpOverload, is_traceable_wrapper, tree_flatten

LEAST_SIZE = 4  # sizes up to here stay: they are windows, heads, channels of an image, and 1
SMALL_SIZE = 16  # of those that are halved until they are no larger; what begins so may be a window of a convolution
SMALL_BATCH = 2  # 1 would be another case

_PLAIN = (int, float, bool, str, type(None), torch.dtype, torch.layout, torch.memory_format, torch.device)

Resized = Callable[[int], int]


@dataclass(frozen=True, slots=True)
class Like:
    """All of a tensor but its elements."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    where: torch.device

    @property
    def extent(self) -> int:
        """The elements from its first to its last place."""
        steps = zip(self.shape, self.stride, strict=True)
        return 1 + sum((size - 1) * step for size, step in steps) if prod(self.shape) else 0

    @property
    def nbytes(self) -> int:
        return self.extent * self.dtype.itemsize

    @property
    def is_row_after_row(self) -> bool:
        """Contiguous, in the order of its dims."""
        expected = 1
        for size, step in zip(reversed(self.shape), reversed(self.stride), strict=True):
            if size != 1 and step != expected:
                return False
            expected *= size
        return True

    def resized(self, shape: Sequence[int]) -> Like:
        """With the dims in the same order."""
        return replace(self, shape=tuple(shape), stride=in_order_of(shape, self.shape, self.stride))


@dataclass(frozen=True, slots=True)
class Call:
    """`leaves` are those of the arguments, tensors as `Like`; `spec` puts them together again."""

    op: OpOverload
    leaves: tuple[Hashable, ...]
    spec: Any

    @property
    def tensors(self) -> tuple[Like, ...]:
        return tuple(leaf for leaf in self.leaves if isinstance(leaf, Like))

    @property
    def nbytes(self) -> int:
        return sum(like.nbytes for like in self.tensors)

    @property
    def where(self) -> torch.device:
        return next((like.where for like in self.tensors if like.where.type != "cpu"), self.tensors[0].where)


def call_of(op: OpOverload, args: Any, kwargs: Any) -> Call | None:
    """None where an argument is of a kind that cannot be made up."""
    leaves, spec = tree_flatten((args, kwargs))
    described = tuple(like_of(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves)
    usable = all(isinstance(leaf, (Like, *_PLAIN)) for leaf in described)
    return Call(op, described, spec) if usable and any(isinstance(leaf, Like) for leaf in described) else None


def like_of(tensor: torch.Tensor) -> Like | None:
    """None of what has no strides, of what is several tensors, and of what has symbols for sizes."""
    if tensor.layout is not torch.strided or is_traceable_wrapper(tensor) or tensor.device.type == "meta":
        return None
    if not all(type(number) is int for number in (*tensor.shape, *tensor.stride())):
        return None
    return Like(tuple(tensor.shape), tensor.stride(), tensor.dtype, indexed(tensor.device))


def smaller_calls(call: Call) -> Iterator[Call]:
    """The most alike first. None where a number that is no tensor's size could be a place in one: kernels trust those,
    and read where nothing is (the lengths of `ctc_loss` do)."""
    sizes = {size for like in call.tensors for size in like.shape}
    numbers = {leaf for leaf in call.leaves if type(leaf) is int}
    if any(abs(number) > LEAST_SIZE for number in numbers - sizes):
        return
    for resized in (_by_rank(sizes), _halved(sizes)):
        yield replace(call, leaves=tuple(_resized(leaf, resized, sizes) for leaf in call.leaves))
    yield _with_small_batch(call)


def _by_rank(sizes: set[int]) -> Resized:
    small: dict[int, int] = {}
    for size in sorted(size for size in sizes if size > LEAST_SIZE):
        small[size] = LEAST_SIZE + 1 + len(small)
    return lambda size: small.get(size, size)


def _halved(sizes: set[int]) -> Resized:
    times = 0
    while any(size >> times > SMALL_SIZE for size in sizes):
        times += 1
    return lambda size: size if size <= SMALL_SIZE else max(size >> times, LEAST_SIZE)


def _with_small_batch(call: Call) -> Call:
    batch = next((like.shape[0] for like in call.tensors if like.shape), 0)
    if batch <= SMALL_BATCH:
        return call
    small = [
        leaf.resized((SMALL_BATCH, *leaf.shape[1:])) if isinstance(leaf, Like) and leaf.shape[:1] == (batch,) else leaf
        for leaf in call.leaves
    ]
    return replace(call, leaves=tuple(small))


def _resized(leaf: Hashable, resized: Resized, sizes: set[int]) -> Hashable:
    if isinstance(leaf, Like):
        return leaf.resized([resized(size) for size in leaf.shape])
    return resized(leaf) if type(leaf) is int and leaf in sizes else leaf
