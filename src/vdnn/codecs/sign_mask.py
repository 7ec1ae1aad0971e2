"""Sign mask: of a ReLU's output its backward wants to know where it is above zero, which is one bit of 32.

Serves readers that ask exactly the question the bits answer (`Need.SIGN` with the same detail), and no others.
"""

from __future__ import annotations

from vdnn.codecs.bit_mask import BitMask
from vdnn.codecs.codec import is_whole_elements, needs_nothing
from vdnn.codecs.kernels.element_types import FLOATS
from vdnn.ir import Information, Need


class SignMask(BitMask):
    @property
    def is_possible(self) -> bool:
        return self.storage.dtype in FLOATS and is_whole_elements(self.storage) and len(self.detail) == 5

    def serves(self, wanted: Information) -> bool:
        return needs_nothing(wanted) or wanted == Information(Need.SIGN, self.detail)
