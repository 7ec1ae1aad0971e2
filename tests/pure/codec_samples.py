"""Data that codecs find hard: every kind of float, zeros in between, and indices that a pooling could have written."""

from __future__ import annotations

import numpy as np

from vdnn.codecs.kernels.window import PerAxis, Window

SPECIAL = np.array(
    [
        0x00000000, 0x80000000,  # zeros
        0x00000001, 0x807FFFFF,  # subnormals
        0x00800000, 0x7F7FFFFF, 0xFF7FFFFF,  # smallest normal, largest finite
        0x7F800000, 0xFF800000,  # infinities
        0x7FC00000, 0xFFC00000, 0x7F800001, 0xFFBFFFFF, 0x7FFFFFFF,  # NaNs, quiet and signalling, with payloads
        0x3F800000, 0xBF800000, 0x40C00000,  # 1, -1, 6
    ],
    np.uint32,
)  # fmt: skip


def floats(n: int, seed: int) -> np.ndarray:
    """float32: a third zeros, a third anything the bits allow, the rest special values and ordinary ones."""
    rng = np.random.default_rng(seed)
    ordinary = rng.standard_normal(n).astype(np.float32).view(np.uint32)
    anything = rng.integers(0, 2**32, n, dtype=np.uint32)
    kinds = np.stack([np.zeros(n, np.uint32), anything, rng.choice(SPECIAL, n), ordinary])
    return kinds[rng.choice(4, n, p=[0.34, 0.33, 0.13, 0.2]), np.arange(n)].view(np.float32)


def raw(array: np.ndarray) -> np.ndarray:
    return array.view(np.uint8)


def pooled(extent: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    return (extent + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


def window(
    kernel: PerAxis, stride: PerAxis, padding: PerAxis, dilation: PerAxis, input: PerAxis, outer: int, inner: int
) -> Window:
    """A pooling whose output has the size PyTorch would give it."""
    depth, height, width = (pooled(*axis) for axis in zip(input, kernel, stride, padding, dilation, strict=True))
    return Window(kernel, stride, padding, dilation, input, (depth, height, width), outer, inner)


ONE, NONE = (1, 1, 1), (0, 0, 0)
WINDOWS = {
    "2x2, stride 2": window((1, 2, 2), (1, 2, 2), NONE, ONE, (1, 8, 10), 3, 1),
    "3x3, stride 2, padded": window((1, 3, 3), (1, 2, 2), (0, 1, 1), ONE, (1, 7, 9), 5, 1),
    "3x3, stride 1, overlapping": window((1, 3, 3), ONE, (0, 1, 1), ONE, (1, 6, 5), 3, 1),
    "3x3, dilated": window((1, 3, 3), ONE, (0, 1, 1), (1, 2, 2), (1, 9, 8), 2, 1),
    "3x3, channels last": window((1, 3, 3), (1, 2, 2), (0, 1, 1), ONE, (1, 7, 7), 2, 37),
    "5x5, one byte per tap": window((1, 5, 5), (1, 3, 3), (0, 2, 2), ONE, (1, 12, 11), 3, 1),
    "16x16, all 256 taps": window((1, 16, 16), (1, 5, 5), NONE, ONE, (1, 40, 33), 2, 3),
    "2x3x2 in three dimensions": window((2, 3, 2), (2, 1, 2), (1, 1, 0), (1, 2, 1), (5, 9, 7), 3, 1),
    "2x2x2, channels last": window((2, 2, 2), (1, 2, 1), NONE, ONE, (4, 6, 5), 2, 20),
    "wider than its input": window((1, 3, 3), ONE, (0, 1, 1), ONE, (1, 2, 2), 4, 1),
    "rows apart beyond any table": window((1, 2, 2), (1, 2, 2), NONE, (1, 2, 1), (1, 4, 20_000), 2, 1),
    "no output": window((1, 2, 2), (1, 2, 2), NONE, ONE, (1, 4, 4), 0, 1),
}


def window_begins(window: Window) -> list[np.ndarray]:
    """Where the window of each pooled element begins along each axis, by way of the tensor's own indices."""
    shape = (window.outer, *window.output, window.inner)
    positions = np.indices(shape).reshape(5, -1)[1:4]
    return [positions[axis] * window.stride[axis] - window.padding[axis] for axis in range(3)]


def indices(window: Window, seed: int) -> np.ndarray:
    """For each pooled element an index inside its window and inside the input, chosen by chance."""
    rng = np.random.default_rng(seed)
    index = np.zeros(window.num_pooled, np.int64)
    for axis, begins in enumerate(window_begins(window)):
        dilation = window.dilation[axis]
        first = np.maximum(0, -(begins // dilation))
        last = np.minimum(window.kernel[axis] - 1, (window.input[axis] - 1 - begins) // dilation)
        index = index * window.input[axis] + begins + rng.integers(first, last + 1) * dilation
    return index
