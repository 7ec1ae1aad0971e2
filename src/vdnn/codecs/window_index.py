"""Window index: where in its window a max-pool found the maximum. PyTorch keeps 8 bytes for it, 4 bits are enough.

Gist (section 3: Binarize) keeps the position within the window, which has at most 16 places up to 4 x 4; larger windows
take a byte. The detail is the geometry of the pooling, flat; see `codecs/kernels/window.py`.
"""

from __future__ import annotations

from math import prod

from vdnn.codecs.codec import Codec, Flat, Kernels, Needed, is_whole_elements, needs_nothing, typed
from vdnn.codecs.kernels.chunk_sizes import workspace_nbytes
from vdnn.codecs.kernels.window import Window
from vdnn.ir import Detail, Information, Need

MAX_WINDOW = 256
"""Places in a window that a byte can tell apart."""


def window_of(detail: Detail) -> Window:
    kernel, stride, padding, dilation, given, pooled = (
        (int(detail[at]), int(detail[at + 1]), int(detail[at + 2])) for at in range(0, 18, 3)
    )
    return Window(kernel, stride, padding, dilation, given, pooled, outer=int(detail[18]), inner=int(detail[19]))


class WindowIndex(Codec):
    @property
    def window(self) -> Window:
        return window_of(self.detail)

    @property
    def is_possible(self) -> bool:
        if self.storage.dtype != "int64" or not is_whole_elements(self.storage) or len(self.detail) != 20:
            return False
        return prod(self.detail[:3]) <= MAX_WINDOW and self.window.num_pooled == self.count

    def serves(self, wanted: Information) -> bool:
        # What is decoded are the indices themselves: a reader that takes all of them is served too.
        return needs_nothing(wanted) or wanted.need is Need.ALL or wanted == Information(Need.WINDOW_INDEX, self.detail)

    @property
    def nbytes(self) -> int:
        return -(-self.count * self.window.tap_bits // 8)

    @property
    def workspace_nbytes(self) -> int:
        return workspace_nbytes(self.window.num_pooled, self.window.output[2] * self.window.inner)

    @property
    def reader_workspace_nbytes(self) -> int:
        return workspace_nbytes(self.window.num_inputs, self.window.input[2] * self.window.inner)

    def encode(self, source: Flat, encoding: Flat, kernels: Kernels) -> Needed:
        """Unusable where an index does not lie in its window: every element from the first such one on is too much."""
        first: Needed = kernels.pack_window(typed(source, "int64"), self.window, encoding)
        return self.nbytes + self.count - first

    def outside(self, needed_nbytes: int) -> str:
        """Of an encoding that is unusable: which element's index does not lie in its window."""
        element = self.count - (needed_nbytes - self.nbytes)
        return (
            f"element {element} of {self.storage.name!r} has an index that is not in its window: that one begins at"
            f" {self.window.begin_of(element)} and has kernel {self.window.kernel}, dilation {self.window.dilation}, in"
            f" an input of {self.window.input}. The indices do not come from this pooling, or their memory order"
            " differs from the window's."
        )

    def decode(self, encoding: Flat, target: Flat, kernels: Kernels) -> None:
        kernels.unpack_window(encoding, self.window, typed(target, "int64"))
