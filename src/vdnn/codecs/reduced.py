"""Reduced precision, applied late (Gist, section 3: Delayed Precision Reduction). Lossy.

Forward uses the map in fp32; only then is it shortened to fp16, bf16, fp10 (1-5-4, three to a word) or fp8 (1-4-3),
rounded to nearest and clamped, and widened to fp32 again before backward reads it. The error enters through the
backward pass alone, which is why it trains where the same formats in forward do not.
"""

from __future__ import annotations

from vdnn.codecs.codec import Flat, Kernels, Rounding, is_whole_elements, typed
from vdnn.codecs.kernels.formats import reduced_nbytes
from vdnn.ir import Information


class Reduced(Rounding):
    @property
    def is_possible(self) -> bool:
        return self.storage.dtype == "float32" and is_whole_elements(self.storage)

    def serves(self, wanted: Information) -> bool:
        return True  # approximately, which is what a lossy plan has been allowed

    @property
    def nbytes(self) -> int:
        return reduced_nbytes(self.count, self.format)

    def encode(self, source: Flat, encoding: Flat, kernels: Kernels) -> int:
        kernels.reduce(typed(source, "float32"), self.format, encoding)
        return self.nbytes

    def decode(self, encoding: Flat, target: Flat, kernels: Kernels) -> None:
        kernels.expand(encoding, self.format, typed(target, "float32"))


class Fp16(Reduced, format="fp16"): ...


class Bf16(Reduced, format="bf16"): ...


class Fp10(Reduced, format="fp10"): ...


class Fp8(Reduced, format="fp8"): ...
