"""Where a max pooling took each of its outputs from: the geometry of its windows.

Enters: kernel, stride, padding, dilation, input and output extents, and the memory order. Leaves: `Window`, which knows
how many outputs there are and how wide the tap of one is. The one idea: an index into the whole input plane takes 64
bits, the position inside the window takes 4, and the geometry turns one into the other. Gist (ISCA 2018) calls it the
Y-to-X map.

    pooled tensor in memory    [outer, output depth, output height, output width, inner]
    contiguous                 outer = batch * channels, inner = 1
    channels_last              outer = batch,            inner = channels
    index                      (input depth * H + input height) * W + input width, as aten's
    tap                        (kernel depth * KH + kernel height) * KW + kernel width
    position along an axis     input = output * stride - padding + kernel * dilation

Two-dimensional pooling has depth 1 everywhere, no padding and no dilation there.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

PerAxis = tuple[int, int, int]
"""Of depth, height and width."""


@dataclass(frozen=True, slots=True)
class Window:
    """One max pooling. Every extent is (depth, height, width) and positive, padding may be 0."""

    kernel: PerAxis
    stride: PerAxis
    padding: PerAxis
    dilation: PerAxis
    input: PerAxis
    output: PerAxis
    outer: int
    inner: int

    def __post_init__(self) -> None:
        for name in ("kernel", "stride", "dilation"):
            if min(getattr(self, name)) < 1:
                raise ValueError(f"a window's {name} is at least 1 along each axis, not {getattr(self, name)}")
        if min(*self.padding, *self.input, *self.output, self.outer, self.inner) < 0:
            raise ValueError(f"a window has no negative sizes: {self}")
        if prod(self.kernel) > 256:
            raise ValueError(
                f"a window tap is one byte at most: a kernel of {self.kernel} has {prod(self.kernel)} positions,"
                " more than 256. Keep the indices of this pooling as they are."
            )

    @property
    def tap_bits(self) -> int:
        return 4 if prod(self.kernel) <= 16 else 8

    @property
    def num_pooled(self) -> int:
        return self.outer * prod(self.output) * self.inner

    @property
    def taps_nbytes(self) -> int:
        return -(-self.num_pooled * self.tap_bits // 8)

    @property
    def num_inputs(self) -> int:
        return self.outer * prod(self.input) * self.inner

    def begin_of(self, element: int) -> PerAxis:
        """Where the window of a pooled element begins in its plane; in the padding where that is negative."""
        row, width = divmod(element // self.inner, self.output[2])
        plane, height = divmod(row, self.output[1])
        depth, height, width = (
            out * self.stride[axis] - self.padding[axis]
            for axis, out in enumerate((plane % self.output[0], height, width))
        )
        return depth, height, width
