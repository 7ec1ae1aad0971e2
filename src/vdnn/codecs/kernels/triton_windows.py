"""Max pooling's window taps in Triton: pack_window, unpack_window, window_backward. reference_windows.py defines them.

Enters: flat tensors on an accelerator, and the window. Leaves: nothing, results go into the tensor that was handed in.
The one idea is in the backward: scattering gradients needs atomic additions, whose order changes from run to run. Here
each input element goes through the windows that cover it, in ascending output order, and adds the gradients of those
that point at it. That order is also the reference's, so sums over overlapping windows have the same bits.
"""

# Constants of a kernel are in capitals, as in Triton's own.
# ruff: noqa: N803

from __future__ import annotations

from math import prod
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from vdnn.codecs.kernels.triton_launch import launch, num_programs, offset_type
from vdnn.codecs.kernels.window import PerAxis, Window

BLOCK = 512  # elements per program: four for each of the 128 threads, which leaves registers for the coordinates


class Geometry(NamedTuple):
    """What a kernel is compiled for: with these known, its divisions become multiplications. The sizes may vary."""

    kernel: PerAxis
    stride: PerAxis
    padding: PerAxis
    dilation: PerAxis
    covering: PerAxis
    """How many windows one input element lies in at most, along each axis."""
    taps_per_byte: int


def geometry_of(window: Window) -> Geometry:
    axes = zip(window.kernel, window.stride, window.dilation, strict=True)
    depth, height, width = ((kernel - 1) * dilation // stride + 1 for kernel, stride, dilation in axes)
    shape = window.kernel, window.stride, window.padding, window.dilation
    return Geometry(*shape, (depth, height, width), 8 // window.tap_bits)


@triton.jit
def plane_position(at: tl.tensor, extents: tl.tuple, inner: tl.tensor) -> tl.tuple:
    """Elements of [outer, depth, height, width, inner] as (outer, depth, height, width, inner)."""
    row = at // inner // extents[2]
    plane = row // extents[1]
    return plane // extents[0], plane % extents[0], row % extents[1], at // inner % extents[2], at % inner


@triton.jit
def axis_tap(position: tl.tensor, window: tl.tensor, AXIS: tl.constexpr, GEOMETRY: tl.constexpr) -> tl.tuple:
    """Which position of the kernel looks at an input's position along an axis, and whether one does."""
    from_begin = position + GEOMETRY.padding[AXIS] - window * GEOMETRY.stride[AXIS]
    axis_tap = from_begin // GEOMETRY.dilation[AXIS]
    is_hit = (from_begin >= 0) & (from_begin % GEOMETRY.dilation[AXIS] == 0) & (axis_tap < GEOMETRY.kernel[AXIS])
    return axis_tap, is_hit


@triton.jit
def tap_and_hit(
    depth: tl.tensor,
    height: tl.tensor,
    width: tl.tensor,
    out_depth: tl.tensor,
    out_height: tl.tensor,
    out_width: tl.tensor,
    GEOMETRY: tl.constexpr,
) -> tl.tuple:
    """The tap by which a window names an input position, and whether that position is in the window at all."""
    tap_depth, hits_depth = axis_tap(depth, out_depth, 0, GEOMETRY)
    tap_height, hits_height = axis_tap(height, out_height, 1, GEOMETRY)
    tap_width, hits_width = axis_tap(width, out_width, 2, GEOMETRY)
    tap = (tap_depth * GEOMETRY.kernel[1] + tap_height) * GEOMETRY.kernel[2] + tap_width
    return tap.to(tl.int32), hits_depth & hits_height & hits_width


@triton.jit
def tap_at(taps: tl.tensor, at: tl.tensor, inside: tl.tensor, GEOMETRY: tl.constexpr) -> tl.tensor:
    """The taps of these pooled elements, two to a byte or one."""
    byte = tl.load(taps + at // GEOMETRY.taps_per_byte, mask=inside, other=0).to(tl.int32)
    if GEOMETRY.taps_per_byte == 2:
        byte = (byte >> (4 * (at % 2)).to(tl.int32)) & 15
    return byte


@triton.jit
def _pack_window(
    indices: tl.tensor,
    taps: tl.tensor,
    first_outside: tl.tensor,
    m: tl.int64,
    plane: tl.int64,
    input: tl.tuple,
    output: tl.tuple,
    inner: tl.tensor,
    GEOMETRY: tl.constexpr,
    TAPS_PER_BYTE: tl.constexpr,
    OFFSET: tl.constexpr,
    BYTES: tl.constexpr,
) -> None:
    byte = tl.program_id(0).to(OFFSET) * BYTES + tl.arange(0, BYTES)
    lane = tl.arange(0, TAPS_PER_BYTE)[None, :]
    at = byte[:, None] * TAPS_PER_BYTE + lane
    index = tl.load(indices + at, mask=at < m, other=0)
    is_index = (index >= 0) & (index < plane)
    _, depth, height, width, _ = plane_position(tl.where(is_index, index, 0).to(OFFSET), input, 1)
    _, out_depth, out_height, out_width, _ = plane_position(at, output, inner)
    tap, is_hit = tap_and_hit(depth, height, width, out_depth, out_height, out_width, GEOMETRY)
    is_right = (is_index & is_hit) | (at >= m)
    tap = tl.where(is_right & (at < m), tap, 0)
    tl.store(taps + byte, tl.sum(tap << (4 * lane), axis=1).to(tl.uint8), mask=byte * TAPS_PER_BYTE < m)
    wrong = tl.where(is_right, m, at).to(tl.int64)
    tl.store(first_outside + tl.program_id(0), tl.min(tl.min(wrong, axis=1), axis=0))


def pack_window(
    indices: torch.Tensor, window: Window, taps: torch.Tensor, *, threads: int | None = None
) -> torch.Tensor:
    """taps[i] = where in its window indices[i] lies; two taps to a byte, the even one low, when 4 bits are enough.

    Returns the first element whose index is not in its window, or how many elements there are, as the device has it.
    """
    m, geometry = indices.numel(), geometry_of(window)
    block = BLOCK // geometry.taps_per_byte
    programs = num_programs(-(-m // geometry.taps_per_byte), block)
    first_outside = torch.full((programs,), m, dtype=torch.int64, device=indices.device)
    sizes = m, prod(window.input), window.input, window.output, window.inner
    constants = {"TAPS_PER_BYTE": geometry.taps_per_byte, "OFFSET": offset_of(window), "BYTES": block}
    launch(_pack_window, programs, indices, taps, first_outside, *sizes, GEOMETRY=geometry, **constants)
    return first_outside.min() if programs else first_outside.new_full((), m)


def offset_of(window: Window) -> tl.dtype:
    return offset_type(max(window.num_pooled, window.num_inputs))


@triton.jit
def _unpack_window(
    taps: tl.tensor,
    indices: tl.tensor,
    m: tl.int64,
    input: tl.tuple,
    output: tl.tuple,
    inner: tl.tensor,
    GEOMETRY: tl.constexpr,
    OFFSET: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    at = tl.program_id(0).to(OFFSET) * BLOCK + tl.arange(0, BLOCK)
    tap = tap_at(taps, at, at < m, GEOMETRY)
    _, out_depth, out_height, out_width, _ = plane_position(at, output, inner)
    depth = looked_at(out_depth, tap // (GEOMETRY.kernel[1] * GEOMETRY.kernel[2]), 0, GEOMETRY)
    height = looked_at(out_height, tap // GEOMETRY.kernel[2] % GEOMETRY.kernel[1], 1, GEOMETRY)
    width = looked_at(out_width, tap % GEOMETRY.kernel[2], 2, GEOMETRY)
    index = (depth.to(tl.int64) * input[1] + height) * input[2] + width
    tl.store(indices + at, index, mask=at < m)


@triton.jit
def looked_at(window: tl.tensor, axis_tap: tl.tensor, AXIS: tl.constexpr, GEOMETRY: tl.constexpr) -> tl.tensor:
    """The input's position along an axis that a position of the kernel looks at."""
    return window * GEOMETRY.stride[AXIS] - GEOMETRY.padding[AXIS] + axis_tap * GEOMETRY.dilation[AXIS]


def unpack_window(taps: torch.Tensor, window: Window, indices: torch.Tensor, *, threads: int | None = None) -> None:
    """indices[i] = the index aten had written."""
    sizes = indices.numel(), window.input, window.output, window.inner
    constants = {"GEOMETRY": geometry_of(window), "OFFSET": offset_of(window), "BLOCK": BLOCK}
    launch(_unpack_window, num_programs(indices.numel(), BLOCK), taps, indices, *sizes, **constants)


@triton.jit
def first_window(position: tl.tensor, AXIS: tl.constexpr, GEOMETRY: tl.constexpr) -> tl.tensor:
    """The first window along an axis that reaches as far as an input's position."""
    reach = (GEOMETRY.kernel[AXIS] - 1) * GEOMETRY.dilation[AXIS]
    from_first = tl.maximum(position + GEOMETRY.padding[AXIS] - reach, 0)
    return (from_first + GEOMETRY.stride[AXIS] - 1) // GEOMETRY.stride[AXIS]


@triton.jit
def _window_backward(
    gradient: tl.tensor,
    taps: tl.tensor,
    target: tl.tensor,
    n: tl.int64,
    input: tl.tuple,
    output: tl.tuple,
    inner: tl.tensor,
    GEOMETRY: tl.constexpr,
    OFFSET: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    at = tl.program_id(0).to(OFFSET) * BLOCK + tl.arange(0, BLOCK)
    outer, depth, height, width, channel = plane_position(at, input, inner)
    total = tl.zeros([BLOCK], tl.float32)
    for i in range(GEOMETRY.covering[0]):
        out_depth = first_window(depth, 0, GEOMETRY) + i
        for j in range(GEOMETRY.covering[1]):
            out_height = first_window(height, 1, GEOMETRY) + j
            for k in range(GEOMETRY.covering[2]):
                out_width = first_window(width, 2, GEOMETRY) + k
                mine, is_hit = tap_and_hit(depth, height, width, out_depth, out_height, out_width, GEOMETRY)
                is_window = (out_depth < output[0]) & (out_height < output[1]) & (out_width < output[2])
                inside = is_hit & is_window & (at < n)
                row = (outer * output[0] + out_depth) * output[1] + out_height
                out = (row * output[2] + out_width) * inner + channel
                is_mine = inside & (tap_at(taps, out, inside, GEOMETRY) == mine)
                total += tl.load(gradient + out, mask=is_mine, other=0.0)
    tl.store(target + at, total, mask=at < n)


def window_backward(
    gradient: torch.Tensor,
    taps: torch.Tensor,
    window: Window,
    target: torch.Tensor,
    *,
    threads: int | None = None,
) -> None:
    """Each gradient is added to the input its output was taken from, in ascending output order within a plane.

    The sum begins at +0.0 and is therefore never -0.0, so what the other windows add, +0.0, changes no bit of it.
    """
    sizes = target.numel(), window.input, window.output, window.inner
    constants = {"GEOMETRY": geometry_of(window), "OFFSET": offset_of(window), "BLOCK": BLOCK}
    launch(_window_backward, num_programs(target.numel(), BLOCK), gradient, taps, target, *sizes, **constants)
