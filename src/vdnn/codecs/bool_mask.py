"""Bool mask: one bit per element where a yes or no is all there is, or all that is asked.

All there is: a boolean tensor (a byte per element in PyTorch), or dropout's noise, whose elements are 0 or 1/(1-p).
Every reader is served then. All that is asked: whether an element lay between two bounds (hard tanh, ReLU6, hard
sigmoid).
"""

from __future__ import annotations

from vdnn.codecs.bit_mask import BitMask
from vdnn.codecs.codec import is_whole_elements, needs_nothing
from vdnn.codecs.kernels.element_types import FLOATS
from vdnn.codecs.kernels.tests_of_elements import Test
from vdnn.ir import Detail, Information, Need, Storage


def detail_of_alphabet(storage: Storage) -> Detail:
    """The parameters that reproduce a storage whose elements are 0 or one other number."""
    off, on = storage.alphabet
    assert off == 0, f"the bits of {storage.name!r} are told apart from zero, not from {off}"
    return (int(Test.NONZERO), 0.0, 0.0, on, off)


class BoolMask(BitMask):
    @property
    def is_possible(self) -> bool:
        known = self.storage.dtype == "bool" or self.storage.dtype in FLOATS
        return known and is_whole_elements(self.storage) and len(self.detail) == 5

    @property
    def _reproduces(self) -> bool:
        return len(self.storage.alphabet) == 2 and self.detail == detail_of_alphabet(self.storage)

    def serves(self, wanted: Information) -> bool:
        return needs_nothing(wanted) or self._reproduces or wanted == Information(Need.BOOL, self.detail)
