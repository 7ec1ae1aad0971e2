"""Max pooling's window taps in torch ops: pack_window, unpack_window, window_backward. The definition:
reference_windows.py.

Enters: flat tensors on any device, and the window. Leaves: results in the tensors that were handed in. The one idea:
what a window knows is known along each axis by itself. So a tensor [outer, depth, height, width, inner] is gone through
in rows (outer, depth, height together), and coordinates are short vectors of one row, one column, one channel each that
broadcast. Backward is Triton's: each input goes through the windows that cover it, in ascending output order.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import NamedTuple

import torch

from vdnn.codecs.kernels.chunk_sizes import chunk_size
from vdnn.codecs.kernels.window import PerAxis, Window


class Rows(NamedTuple):
    """Some rows of a tensor [outer, depth, height, width, inner]: their elements, and each one's position."""

    elements: slice
    outer: torch.Tensor
    depth: torch.Tensor
    height: torch.Tensor


def in_rows(tensor: torch.Tensor, window: Window, extents: PerAxis) -> Iterator[Rows]:
    """All rows of a tensor, an even number at a time, so that a chunk begins with a whole byte of taps."""
    depth, height, width = extents
    row_size = width * window.inner
    num_rows = tensor.numel() // max(row_size, 1)
    at_once = max(chunk_size(tensor.numel()) // max(row_size, 1) // 2 * 2, 2)
    for begin in range(0, num_rows, at_once):
        end = min(begin + at_once, num_rows)
        row = torch.arange(begin, end, device=tensor.device)
        plane = row // height
        yield Rows(slice(begin * row_size, end * row_size), plane // depth, plane % depth, row % height)


def window_begin(output: torch.Tensor, axis: int, window: Window) -> torch.Tensor:
    return output * window.stride[axis] - window.padding[axis]


def pack_window(
    indices: torch.Tensor, window: Window, taps: torch.Tensor, *, threads: int | None = None
) -> torch.Tensor:
    """taps[i] = where in its window indices[i] lies; two taps to a byte, the even one low, when 4 bits are enough.

    Returns the first element whose index is not in its window, or how many elements there are.
    """
    m, (_, height, width) = indices.numel(), window.input
    first = torch.full((), m, dtype=torch.int64, device=indices.device)
    column_begin = window_begin(torch.arange(window.output[2], device=indices.device), 2, window)
    for rows in in_rows(indices, window, window.output):
        index = indices[rows.elements].view(-1, window.output[2], window.inner)
        is_right = (index >= 0).logical_and_(index < prod(window.input))
        begins = window_begin(rows.depth, 0, window), window_begin(rows.height, 1, window), column_begin
        places_per_step, tap = (height * width, width, 1), torch.zeros_like(index)
        for axis, (begin, step) in enumerate(zip(begins, places_per_step, strict=True)):
            position = (index // step).remainder_(window.input[axis]) if axis else index // step
            position.sub_(begin[None, :, None] if axis == 2 else begin[:, None, None])
            is_right.logical_and_(position >= 0)
            is_right.logical_and_(position % window.dilation[axis] == 0)
            position.div_(window.dilation[axis], rounding_mode="floor")
            is_right.logical_and_(position < window.kernel[axis])
            tap.mul_(window.kernel[axis]).add_(position)
        del position
        write_taps(tap.view(-1), rows.elements, window, taps)
        order = torch.arange(rows.elements.start, rows.elements.stop, device=indices.device)
        first = torch.minimum(first, order.masked_fill_(is_right.view(-1), m).min())
    return first


def write_taps(tap: torch.Tensor, chunk: slice, window: Window, taps: torch.Tensor) -> None:
    if window.tap_bits == 8:
        taps[chunk] = tap
        return
    pairs = torch.nn.functional.pad(tap, (0, len(tap) % 2)).bitwise_and_(15).view(-1, 2)
    taps[chunk.start // 2 : -(-chunk.stop // 2)] = pairs[:, 0] | (pairs[:, 1] << 4)


def read_taps(chunk: slice, window: Window, taps: torch.Tensor) -> torch.Tensor:
    if window.tap_bits == 8:
        return taps[chunk]
    packed = taps[chunk.start // 2 : -(-chunk.stop // 2)]
    return torch.stack([packed & 15, packed >> 4], dim=1).view(-1)[: chunk.stop - chunk.start]


def unpack_window(taps: torch.Tensor, window: Window, indices: torch.Tensor, *, threads: int | None = None) -> None:
    """indices[i] = the index aten had written."""
    _, height, width = window.kernel
    column_begin = window_begin(torch.arange(window.output[2], device=taps.device), 2, window)
    for rows in in_rows(indices, window, window.output):
        tap = read_taps(rows.elements, window, taps).view(-1, window.output[2], window.inner).to(torch.int64)
        index = (tap // (height * width)).mul_(window.dilation[0])
        index.add_(window_begin(rows.depth, 0, window)[:, None, None]).mul_(window.input[1])
        index.add_((tap // width).remainder_(height).mul_(window.dilation[1]))
        index.add_(window_begin(rows.height, 1, window)[:, None, None]).mul_(window.input[2])
        index.add_(tap.remainder_(width).mul_(window.dilation[2])).add_(column_begin[None, :, None])
        indices[rows.elements] = index.view(-1)


class Covering(NamedTuple):
    """Of positions along an axis: one of the windows they lie in, and as which position of its kernel. `is_hit`: there
    is such a window."""

    window: torch.Tensor
    tap: torch.Tensor
    is_hit: torch.Tensor


def coverings(position: torch.Tensor, axis: int, window: Window) -> list[Covering]:
    """All windows along an axis that positions of the input may lie in, in ascending order."""
    kernel, stride, dilation = window.kernel[axis], window.stride[axis], window.dilation[axis]
    reach = (kernel - 1) * dilation
    first = (position + (window.padding[axis] - reach)).clamp_(min=0).add_(stride - 1) // stride
    found = []
    for number in range(reach // stride + 1):
        output = first + number
        from_begin = position - window_begin(output, axis, window)
        tap = from_begin // dilation
        is_hit = (from_begin >= 0) & (from_begin % dilation == 0) & (tap < kernel) & (output < window.output[axis])
        found.append(Covering(output.masked_fill_(is_hit.logical_not(), 0), tap, is_hit))
    return found


def window_backward(
    gradient: torch.Tensor, taps: torch.Tensor, window: Window, target: torch.Tensor, *, threads: int | None = None
) -> None:
    """Each gradient is added to the input its output was taken from, in ascending output order within a plane.

    The sum begins at +0.0 and is therefore never -0.0, so what the other windows add, +0.0, changes no bit of it.
    """
    if not gradient.numel():
        target.zero_()
        return
    device, (_, height, width) = target.device, window.output
    columns = coverings(torch.arange(window.input[2], device=device), 2, window)
    channel = torch.arange(window.inner, device=device)
    for rows in in_rows(target, window, window.input):
        total = target[rows.elements].zero_().view(-1, window.input[2], window.inner)
        for depth in coverings(rows.depth, 0, window):
            for row in coverings(rows.height, 1, window):
                plane = (rows.outer * window.output[0] + depth.window).mul_(height)
                begin = plane.add_(row.window).mul_(width)
                row_tap = (depth.tap * window.kernel[1]).add_(row.tap).mul_(window.kernel[2])
                is_hit = depth.is_hit & row.is_hit
                for column in columns:
                    at = (begin[:, None] + column.window).mul_(window.inner)[:, :, None] + channel
                    mine = row_tap[:, None] + column.tap
                    mine.masked_fill_((is_hit[:, None] & column.is_hit).logical_not_(), -1)  # which is no tap
                    is_mine = tap_at(taps, at, window).view(at.shape) == mine[:, :, None]
                    given = gradient.index_select(0, at.view(-1)).view(at.shape)
                    total.add_(given.masked_fill_(is_mine.logical_not_(), 0.0))


def tap_at(taps: torch.Tensor, at: torch.Tensor, window: Window) -> torch.Tensor:
    """The taps of these pooled elements."""
    if window.tap_bits == 8:
        return taps.index_select(0, at.view(-1))
    found = taps.index_select(0, (at >> 1).view(-1))
    is_odd = (at & 1).view(-1).to(torch.bool)
    return torch.where(is_odd, found >> 4, found & 15)
