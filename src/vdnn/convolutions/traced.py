"""Which other ways a traced op offers, and the arguments they are called with.

Enters: a node of a captured graph. Leaves: names of its variants (`ways.py` says what they are), and for one of them
the arguments of what computes it: the way, the layouts that the trace gave the results, and the op's own arguments,
still nodes of the traced graph. Only float32 on the CPU is looked at: other types have other kernels, and nothing was
measured of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx

from vdnn.capture.nodes import arguments_of, tensor_of, tensors_of
from vdnn.convolutions.compute import COMPUTE, ResultLayout
from vdnn.convolutions.ways import CHANNELS_LAST, CHUNKS, PART_COUNTS, SLICES, SUMS, in_parts
from vdnn.torch_private import OpOverload


def variants_of(node: fx.Node) -> tuple[str, ...]:
    """Names of all variants but the op itself; none for what has none."""
    if node.target not in COMPUTE or not all(_is_known(source) for source in node.all_input_nodes):
        return ()
    assert isinstance(node.target, OpOverload), f"{node} has no schema"
    arguments = arguments_of(node)
    images = tensor_of(arguments["input"])
    assert images is not None, f"{node} convolves a tensor"
    counts = sorted({min(count, images.shape[0]) for count in PART_COUNTS} - {1})
    if "output_mask" not in arguments:
        return (*_layouts_to_try(images), *_split(CHUNKS, counts))
    ties_channels = arguments["transposed"] or arguments["groups"] != 1
    return (*_layouts_to_try(images), *_of_gradients(arguments["output_mask"], counts, ties_channels))


def variant_arguments(node: fx.Node, variant: str) -> tuple[Any, ...]:
    """What computes the op takes: `COMPUTE` alone, `runtime/convolution_calls.py` in a training step."""
    return (variant, tuple(_layout(tensor) for tensor in tensors_of(node)), *arguments_of(node).values())


def _layout(tensor: torch.Tensor | None) -> ResultLayout | None:
    return None if tensor is None else (tuple(tensor.shape), tuple(tensor.stride()))


def _is_known(source: fx.Node) -> bool:
    tensor = tensor_of(source)
    return tensor is not None and tensor.dtype is torch.float32 and tensor.device.type in ("cpu", "meta")


def _layouts_to_try(images: torch.Tensor) -> tuple[str, ...]:
    is_there = images.dim() != 4 or images.is_contiguous(memory_format=torch.channels_last)
    return () if is_there else (CHANNELS_LAST,)


def _of_gradients(mask: Sequence[bool], counts: Sequence[int], ties_channels: bool) -> Iterator[str]:
    """Chunks help who wants the input's gradient, slices and sums who wants the weight's. Beside a weight's gradient,
    which stays whole then, more chunks than the fewest save nothing more."""
    of_input, of_weight = mask[0], mask[1]
    if of_input:
        yield from _split(CHUNKS, counts[:1] if of_weight else counts)
    if of_weight:
        yield from () if ties_channels else _split(SLICES, PART_COUNTS)
        yield from _split(SUMS, counts)


def _split(form: str, counts: Sequence[int]) -> Iterator[str]:
    return (in_parts(form, count) for count in counts)
