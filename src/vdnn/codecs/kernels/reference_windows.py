"""Max pooling's window codes in numpy: the definition of pack_window, unpack_window and window_backward.

Enters: aten's int64 indices, or codes. Leaves: nothing, results go into the array that was handed in. window.py has the
geometry and the memory order.
"""

from __future__ import annotations

import numpy as np

from vdnn.codecs.kernels.reference_masks import pieces
from vdnn.codecs.kernels.window import Window

PIECE = 2**18  # elements; some ten temporaries of 64 bits each are alive at once


def coordinates(piece: slice, window: Window) -> tuple[np.ndarray, list[np.ndarray]]:
    """Of each pooled element: its place among the planes (outer, inner) as one number, and where its window begins."""
    rest, inner = np.divmod(np.arange(piece.start, piece.stop), window.inner)
    begins: list[np.ndarray] = []
    for axis in (2, 1, 0):
        rest, position = np.divmod(rest, window.output[axis])
        begins.insert(0, position * window.stride[axis] - window.padding[axis])
    return rest * window.inner + inner, begins


def indices_of(codes: np.ndarray, begins: list[np.ndarray], window: Window) -> np.ndarray:
    """Codes as indices into the plane: where the window begins, plus kernel position times dilation, on each axis."""
    index = np.zeros(len(codes), np.int64)
    for axis, kernel_position in enumerate(np.unravel_index(codes, window.kernel)):
        index = index * window.input[axis] + begins[axis] + kernel_position * window.dilation[axis]
    return index


def codes_of(indices: np.ndarray, begins: list[np.ndarray], window: Window) -> tuple[np.ndarray, np.ndarray]:
    """Indices as codes, and which of them do lie in their window."""
    _, height, width = window.input
    rest, column = np.divmod(indices, max(width, 1))
    depth, row = np.divmod(rest, max(height, 1))
    codes, inside = np.zeros(len(indices), np.int64), (depth >= 0) & (depth < window.input[0])
    for axis, position in enumerate((depth, row, column)):
        steps, remainder = np.divmod(position - begins[axis], window.dilation[axis])
        inside &= (remainder == 0) & (steps >= 0) & (steps < window.kernel[axis])
        codes = codes * window.kernel[axis] + steps
    return codes, inside


def pack_window(indices: np.ndarray, window: Window, codes: np.ndarray, *, threads: int | None = None) -> None:
    """codes[i] = where in its window indices[i] lies; two codes to a byte, the even one low, when 4 bits are enough."""
    for piece in pieces(len(indices), PIECE):
        _, begins = coordinates(piece, window)
        chosen, inside = codes_of(indices[piece], begins, window)
        if not inside.all():
            raise outside_window(piece.start + int(np.argmin(inside)), indices, window)
        write_codes(chosen.astype(np.uint8), piece, window, codes)


def outside_window(element: int, indices: np.ndarray, window: Window) -> ValueError:
    """What to raise for the first element whose index its window cannot have produced."""
    begins = [int(begin[0]) for begin in coordinates(slice(element, element + 1), window)[1]]
    return ValueError(
        f"element {element} has index {int(indices[element])}, which is not in its window: that one begins at"
        f" {tuple(begins)} and has kernel {window.kernel}, dilation {window.dilation}, in an input of {window.input}."
        " The indices do not come from this pooling, or their memory order differs from the window's."
    )


def write_codes(chosen: np.ndarray, piece: slice, window: Window, codes: np.ndarray) -> None:
    if window.code_bits == 8:
        codes[piece] = chosen
        return
    pairs = np.append(chosen, np.uint8(0)) if len(chosen) % 2 else chosen
    codes[piece.start // 2 : -(-piece.stop // 2)] = pairs[0::2] | pairs[1::2] << np.uint8(4)


def read_codes(piece: slice, window: Window, codes: np.ndarray) -> np.ndarray:
    if window.code_bits == 8:
        return codes[piece]
    packed = codes[piece.start // 2 : -(-piece.stop // 2)]
    return np.stack([packed & np.uint8(15), packed >> np.uint8(4)], axis=1).reshape(-1)[: piece.stop - piece.start]


def unpack_window(codes: np.ndarray, window: Window, indices: np.ndarray, *, threads: int | None = None) -> None:
    """indices[i] = the index aten had written."""
    for piece in pieces(len(indices), PIECE):
        _, begins = coordinates(piece, window)
        indices[piece] = indices_of(read_codes(piece, window, codes), begins, window)


def window_backward(
    gradient: np.ndarray, codes: np.ndarray, window: Window, target: np.ndarray, *, threads: int | None = None
) -> None:
    """Each gradient is added to the input its output was taken from, in ascending output order within a plane.

    Overlapping windows add several gradients to one input, and that order is aten's, so the sums have the same bits.
    """
    target[:] = 0
    plane_size = window.input[0] * window.input[1] * window.input[2]
    for piece in pieces(len(gradient), PIECE):
        plane, begins = coordinates(piece, window)
        outer, inner = np.divmod(plane, window.inner)
        index = indices_of(read_codes(piece, window, codes), begins, window)
        np.add.at(target, (outer * plane_size + index) * window.inner + inner, gradient[piece])
