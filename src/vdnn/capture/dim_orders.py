"""The order in which a tensor's dims lie in memory, carried over to other sizes."""

from __future__ import annotations

from collections.abc import Sequence


def in_order_of(shape: Sequence[int], like_shape: Sequence[int], like_stride: Sequence[int]) -> tuple[int, ...]:
    """Strides of `shape` with the dims in the order of these, dense where these are dense, with holes where these have
    some, and repeating what these repeat."""
    stride, step, like_step = [0] * len(shape), 1, 1
    for dim in _inside_first(like_shape, like_stride):
        size, like_size, found = shape[dim], like_shape[dim], like_stride[dim]
        if found == 0 and like_size != 1:
            continue
        if found > like_step and like_size != 1:
            step += 1
        stride[dim] = step
        step *= max(size, 1)
        like_step = like_step if like_size == 1 else found * max(like_size, 1)
    return tuple(stride)


def is_dense(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether the order of the dims says all of the strides."""
    step = 1
    for dim in _inside_first(shape, stride):
        if stride[dim] != step:
            return False
        step *= max(shape[dim], 1)
    return True


def _inside_first(shape: Sequence[int], stride: Sequence[int]) -> list[int]:
    """Of two dims with one stride that of a single element lies inside, as where PyTorch makes either order."""
    return sorted(range(len(shape)), key=lambda dim: (stride[dim], shape[dim] != 1, -dim))
