"""Convolutions computed another way: the same result in the traced layout, with less memory beside it.

Enters: a way (`ways.py`), the layouts of the results, and the arguments of `aten.convolution` or
`aten.convolution_backward`. Leaves: what the op itself returns. The ways work on a part at a time, so that only that
part is reordered. This is the CPU's side of SuperNeurons' dynamic workspaces (PPoPP 2018, section 3.5).

    channels_last   everything converted first and back afterwards: needs about as much, and is sometimes faster
    chunks-k        forward: the batch in k parts. Backward: the input's gradient in k parts of the batch, the weight's
                    whole, because the batch is what that one sums over
    slices-k        chunks-k, and the weight's gradient in k parts of its channels, of whichever side is larger
    sums-k          both gradients in k parts of the batch, the weight's added up: another order of summation
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from vdnn.convolutions.ways import CHANNELS_LAST, SLICES, SUMS, form_of, num_parts_of, parts
from vdnn.torch_private import OpOverload

ResultLayout = tuple[tuple[int, ...], tuple[int, ...]]
"""Shape and strides of one result."""

Gradients = tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]
"""Of input, weight and bias; None where the output mask leaves one out."""

_aten = torch.ops.aten


def convolution(
    way: str,
    layouts: Sequence[ResultLayout | None],
    images: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    *geometry: Any,
) -> torch.Tensor:
    (layout,) = layouts
    if way == CHANNELS_LAST:
        return _laid_out(_aten.convolution(_converted(images), _converted(weight), bias, *geometry), layout)
    result = _empty(images, layout)
    for part in parts(images.shape[0], num_parts_of(way)):
        result[part].copy_(_aten.convolution(images[part], weight, bias, *geometry))
    return result


def convolution_backward(
    way: str,
    layouts: Sequence[ResultLayout | None],
    gradient: torch.Tensor,
    images: torch.Tensor,
    weight: torch.Tensor,
    *rest: Any,
) -> Gradients:
    *geometry, mask = rest
    form = form_of(way)
    if form == CHANNELS_LAST:
        return _backward_in_channels_last(layouts, gradient, images, weight, geometry, mask)
    if form == SUMS:
        return _backward_summed(num_parts_of(way), layouts, gradient, images, weight, geometry, mask)
    in_chunks = _input_gradient(num_parts_of(way), layouts[0], gradient, images, weight, geometry) if mask[0] else None
    if form == SLICES:
        return in_chunks, *_in_slices(num_parts_of(way), layouts[1:], gradient, images, weight, geometry, mask[2])
    _, of_weight, of_bias = _backward(gradient, images, weight, geometry, [False, *mask[1:]])
    return in_chunks, _laid_out(of_weight, layouts[1]), of_bias


def _input_gradient(
    num_parts: int,
    layout: ResultLayout | None,
    gradient: torch.Tensor,
    images: torch.Tensor,
    weight: torch.Tensor,
    geometry: Sequence[Any],
) -> torch.Tensor:
    result = _empty(gradient, layout)
    for part in parts(images.shape[0], num_parts):
        result[part].copy_(_backward(gradient[part], images[part], weight, geometry, [True, False, False])[0])
    return result


def _in_slices(
    num_parts: int,
    layouts: Sequence[ResultLayout | None],
    gradient: torch.Tensor,
    images: torch.Tensor,
    weight: torch.Tensor,
    geometry: Sequence[Any],
    has_bias: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Each channel of a weight has its own sum: by channels of the output if that is larger, else of the input."""
    of_weight, of_bias = _empty(gradient, layouts[0]), _empty(gradient, layouts[1]) if has_bias else None
    by_output = gradient.numel() >= images.numel()
    for part in parts(weight.shape[0 if by_output else 1], num_parts):
        grad = gradient[:, part].contiguous() if by_output else gradient
        seen = images if by_output else images[:, part].contiguous()
        some = (part,) if by_output else (slice(None), part)
        asks_bias = has_bias and (by_output or part.start == 0)
        found = _backward(grad, seen, weight[some], _for_channels(geometry, grad), [False, True, asks_bias])
        of_weight[some].copy_(found[1])
        if of_bias is not None and asks_bias:
            of_bias[part if by_output else slice(None)].copy_(found[2])
        del grad, seen, found
    return of_weight, of_bias


def _for_channels(geometry: Sequence[Any], gradient: torch.Tensor) -> Sequence[Any]:
    """The bias has one element per channel of the output that is looked at."""
    bias_sizes, *rest = geometry
    return [None if bias_sizes is None else [gradient.shape[1]], *rest]


def _backward_summed(
    num_parts: int,
    layouts: Sequence[ResultLayout | None],
    gradient: torch.Tensor,
    images: torch.Tensor,
    weight: torch.Tensor,
    geometry: Sequence[Any],
    mask: Sequence[bool],
) -> Gradients:
    of_input = _empty(gradient, layouts[0]) if mask[0] else None
    of_weight = _empty(gradient, layouts[1]).zero_() if mask[1] else None
    of_bias = _empty(gradient, layouts[2]).zero_() if mask[2] else None
    for part in parts(images.shape[0], num_parts):
        found = _backward(gradient[part], images[part], weight, geometry, mask)
        if of_input is not None:
            of_input[part].copy_(found[0])
        for total, some in ((of_weight, found[1]), (of_bias, found[2])):
            if total is not None:
                total.add_(some)
        del found, some
    return of_input, of_weight, of_bias


def _backward_in_channels_last(
    layouts: Sequence[ResultLayout | None],
    gradient: torch.Tensor,
    images: torch.Tensor,
    weight: torch.Tensor,
    geometry: Sequence[Any],
    mask: Sequence[bool],
) -> Gradients:
    # What is looked at for its shape only stays as it is: it may be there as a shape only.
    seen = _converted(images) if mask[1] else images
    used = _converted(weight) if mask[0] else weight
    of_input, of_weight, of_bias = _backward(_converted(gradient), seen, used, geometry, mask)
    del seen, used
    return _laid_out(of_input, layouts[0]), _laid_out(of_weight, layouts[1]), of_bias


def _backward(
    gradient: torch.Tensor, images: torch.Tensor, weight: torch.Tensor, geometry: Sequence[Any], mask: Sequence[bool]
) -> Any:
    bias_sizes, *rest = geometry
    return _aten.convolution_backward(gradient, images, weight, bias_sizes, *rest, mask)


def _converted(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous(memory_format=torch.channels_last)


def _laid_out(tensor: Any, layout: ResultLayout | None) -> Any:
    """The tensor with the strides of the trace; itself where it has them already, or where there is none."""
    if tensor is None or layout is None or tensor.stride() == layout[1]:
        return tensor
    return _empty(tensor, layout).copy_(tensor)


def _empty(like: torch.Tensor, layout: ResultLayout | None) -> torch.Tensor:
    assert layout is not None, "a result that is asked for has a layout"
    return torch.empty_strided(*layout, dtype=like.dtype, device=like.device)


COMPUTE: Mapping[OpOverload, Callable[..., Any]] = {
    _aten.convolution.default: convolution,
    _aten.convolution_backward.default: convolution_backward,
}
"""Ops that can be computed in more than one way, and what computes them."""
