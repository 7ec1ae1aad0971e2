"""Max pooling's window taps in numpy: the definition of pack_window, unpack_window and window_backward.

Enters: aten's int64 indices, or taps. Leaves: nothing, results go into the array that was handed in. window.py has the
geometry and the memory order.
"""

from __future__ import annotations

import numpy as np

from vdnn.codecs.kernels.reference_masks import chunks
from vdnn.codecs.kernels.window import Window

OUTPUTS_PER_CHUNK = 2**18  # some ten temporaries of 64 bits each are alive at once


def coordinates(chunk: slice, window: Window) -> tuple[np.ndarray, list[np.ndarray]]:
    """Of each pooled element: its place among the planes (outer, inner) as one number, and where its window begins."""
    rest, inner = np.divmod(np.arange(chunk.start, chunk.stop), window.inner)
    begins: list[np.ndarray] = []
    for axis in (2, 1, 0):
        rest, position = np.divmod(rest, window.output[axis])
        begins.insert(0, position * window.stride[axis] - window.padding[axis])
    return rest * window.inner + inner, begins


def indices_of(taps: np.ndarray, begins: list[np.ndarray], window: Window) -> np.ndarray:
    """Taps as indices into the plane: where the window begins, plus kernel position times dilation, on each axis."""
    index = np.zeros(len(taps), np.int64)
    for axis, kernel_position in enumerate(np.unravel_index(taps, window.kernel)):
        index = index * window.input[axis] + begins[axis] + kernel_position * window.dilation[axis]
    return index


def taps_of(indices: np.ndarray, begins: list[np.ndarray], window: Window) -> tuple[np.ndarray, np.ndarray]:
    """Indices as taps, and which of them do lie in their window."""
    _, height, width = window.input
    rest, column = np.divmod(indices, max(width, 1))
    depth, row = np.divmod(rest, max(height, 1))
    taps, inside = np.zeros(len(indices), np.int64), (depth >= 0) & (depth < window.input[0])
    for axis, position in enumerate((depth, row, column)):
        steps, remainder = np.divmod(position - begins[axis], window.dilation[axis])
        inside &= (remainder == 0) & (steps >= 0) & (steps < window.kernel[axis])
        taps = taps * window.kernel[axis] + steps
    return taps, inside


def pack_window(indices: np.ndarray, window: Window, taps: np.ndarray, *, threads: int | None = None) -> int:
    """taps[i] = where in its window indices[i] lies; two taps to a byte, the even one low, when 4 bits are enough.

    Returns the first element whose index is not in its window, or how many elements there are. Taps from there on are
    undefined.
    """
    for chunk in chunks(len(indices), OUTPUTS_PER_CHUNK):
        _, begins = coordinates(chunk, window)
        chosen, inside = taps_of(indices[chunk], begins, window)
        if not inside.all():
            return chunk.start + int(np.argmin(inside))
        write_taps(chosen.astype(np.uint8), chunk, window, taps)
    return len(indices)


def write_taps(chosen: np.ndarray, chunk: slice, window: Window, taps: np.ndarray) -> None:
    if window.tap_bits == 8:
        taps[chunk] = chosen
        return
    pairs = np.append(chosen, np.uint8(0)) if len(chosen) % 2 else chosen
    taps[chunk.start // 2 : -(-chunk.stop // 2)] = pairs[0::2] | pairs[1::2] << np.uint8(4)


def read_taps(chunk: slice, window: Window, taps: np.ndarray) -> np.ndarray:
    if window.tap_bits == 8:
        return taps[chunk]
    packed = taps[chunk.start // 2 : -(-chunk.stop // 2)]
    return np.stack([packed & np.uint8(15), packed >> np.uint8(4)], axis=1).reshape(-1)[: chunk.stop - chunk.start]


def unpack_window(taps: np.ndarray, window: Window, indices: np.ndarray, *, threads: int | None = None) -> None:
    """indices[i] = the index aten had written."""
    for chunk in chunks(len(indices), OUTPUTS_PER_CHUNK):
        _, begins = coordinates(chunk, window)
        indices[chunk] = indices_of(read_taps(chunk, window, taps), begins, window)


def window_backward(
    gradient: np.ndarray, taps: np.ndarray, window: Window, target: np.ndarray, *, threads: int | None = None
) -> None:
    """Each gradient is added to the input its output was taken from, in ascending output order within a plane.

    Overlapping windows add several gradients to one input, and that order is aten's, so the sums have the same bits.
    """
    target[:] = 0
    plane_size = window.input[0] * window.input[1] * window.input[2]
    for chunk in chunks(len(gradient), OUTPUTS_PER_CHUNK):
        plane, begins = coordinates(chunk, window)
        outer, inner = np.divmod(plane, window.inner)
        index = indices_of(read_taps(chunk, window, taps), begins, window)
        np.add.at(target, (outer * plane_size + index) * window.inner + inner, gradient[chunk])
