"""What both masks share: one bit per element, the answer to one question about it (Gist, section 3: Binarize).

The detail is (test, low, high, on, off): a bit is set where the element passes the test, and decoding writes `on` or
`off`, numbers that give every reader the same answer as the element did.
"""

from __future__ import annotations

from vdnn.codecs.codec import Codec, Flat, Kernels
from vdnn.codecs.kernels.chunk_sizes import NBYTES_PER_MASKED_ELEMENT, workspace_nbytes
from vdnn.codecs.kernels.tests_of_elements import Test


class BitMask(Codec):
    @property
    def nbytes(self) -> int:
        return -(-self.count // 8)

    @property
    def workspace_nbytes(self) -> int:
        return workspace_nbytes(self.count, nbytes_per_element=NBYTES_PER_MASKED_ELEMENT)

    def encode(self, source: Flat, encoding: Flat, kernels: Kernels) -> int:
        test, low, high, _, _ = self.detail
        kernels.pack_mask(source, self.storage.dtype, Test(int(test)), low, high, encoding)
        return self.nbytes

    def decode(self, encoding: Flat, target: Flat, kernels: Kernels) -> None:
        _, _, _, on, off = self.detail
        kernels.unpack_mask(encoding, target, self.storage.dtype, on, off)
