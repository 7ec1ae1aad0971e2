"""Sparse storage, dense compute (Gist, section 3: SSDC): the elements that are not zero, and where they are.

Two forms. With a bit mask: one bit per element, then the values; with fp32 values it breaks even at 3 % zeros. As
published, CSR over rows of 256 elements, so that a column takes one byte: it breaks even at 20 % zeros and is the
smaller one beyond 89 %. The values may be reduced floats, which is lossy.

How many elements are not zero is known only when the data is there, so the detail is a bound: the density that is
planned for. Data that is denser does not fit, and `encode` says so by the bytes it would have needed.
"""

from __future__ import annotations

from math import ceil
from typing import ClassVar

from vdnn.codecs.codec import (
    ELEMENT_NBYTES,
    Codec,
    Flat,
    Kernels,
    Needed,
    Rounding,
    is_whole_elements,
    rounded_up,
    typed,
)
from vdnn.codecs.kernels.sparse_layout import (
    csr_value_nbytes,
    mask_nbytes,
    num_blocks,
    num_rows,
    padding_nbytes,
    value_nbytes,
    values_nbytes,
)
from vdnn.ir import Information


class Sparse(Codec):
    """The bit-mask form: starts of blocks, mask, values."""

    has_fixed_size: ClassVar[bool] = False
    format: ClassVar[str] = "raw"

    @property
    def is_possible(self) -> bool:
        widths = (2, 4) if self.format == "raw" else (4,)
        is_float = self.storage.dtype in ("float32", "bfloat16", "float16")
        return is_float and is_whole_elements(self.storage) and self.element_nbytes in widths and len(self.detail) == 1

    @property
    def element_nbytes(self) -> int:
        return ELEMENT_NBYTES[self.storage.dtype]

    @property
    def max_values(self) -> int:
        (density,) = self.detail
        return min(ceil(self.count * density), self.count)

    def serves(self, wanted: Information) -> bool:
        return True

    @property
    def nbytes(self) -> int:
        return self._values_begin + rounded_up(self._values_nbytes)

    @property
    def traffic_nbytes(self) -> int:
        # The source is read twice: where a thread's values begin is known once the others' have been counted.
        return 2 * self.storage.nbytes + self.nbytes

    def encode(self, source: Flat, encoding: Flat, kernels: Kernels) -> Needed:
        starts, bits, values = self._sections(encoding)
        needed: Needed = kernels.sparse_encode(source, self.element_nbytes, self.format, bits, starts, values)
        return needed + self._values_begin

    def decode(self, encoding: Flat, target: Flat, kernels: Kernels) -> None:
        starts, bits, values = self._sections(encoding)
        kernels.sparse_decode(bits, starts, values, self.element_nbytes, self.format, target)

    def density(self, needed_nbytes: int) -> float:
        """The share of elements that are not zero, from what `encode` returned; exact for values that are not
        reduced."""
        width = value_nbytes(self.element_nbytes, self.format)
        return (needed_nbytes - self._values_begin) / width / max(self.count, 1)

    @property
    def _bits_begin(self) -> int:
        return 8 * (num_blocks(self.count) + 1)

    @property
    def _values_begin(self) -> int:
        return self._bits_begin + rounded_up(mask_nbytes(self.count))

    @property
    def _values_nbytes(self) -> int:
        padding = num_blocks(self.count) * padding_nbytes(self.format)
        return values_nbytes(self.max_values, self.element_nbytes, self.format) + padding

    def _sections(self, encoding: Flat) -> tuple[Flat, Flat, Flat]:
        starts = typed(encoding[: self._bits_begin], "int64")
        return starts, encoding[self._bits_begin :][: mask_nbytes(self.count)], encoding[self._values_begin :]


class SparseCsr(Sparse):
    """The published form: row pointers, columns, values."""

    @property
    def is_possible(self) -> bool:
        return super().is_possible and self.element_nbytes == 4 and self.count < 2**32  # row pointers have 4 bytes

    def encode(self, source: Flat, encoding: Flat, kernels: Kernels) -> Needed:
        rows, columns, values = self._sections(encoding)
        found: Needed = kernels.csr_encode(source, self.format, rows, columns, values)
        # What is too much exceeds the padding between columns and values too.
        padding = (found > self.max_values) * (self.nbytes - self._columns_begin)
        return found * (1 + self._value_nbytes) + padding + self._columns_begin

    def decode(self, encoding: Flat, target: Flat, kernels: Kernels) -> None:
        rows, columns, values = self._sections(encoding)
        kernels.csr_decode(rows, columns, values, self.format, target)

    def density(self, needed_nbytes: int) -> float:
        begin = self._columns_begin if needed_nbytes <= self.nbytes else self.nbytes
        return (needed_nbytes - begin) / (1 + self._value_nbytes) / max(self.count, 1)

    @property
    def _value_nbytes(self) -> int:
        return csr_value_nbytes(self.format)

    @property
    def _rows_nbytes(self) -> int:
        return 4 * (num_rows(self.count) + 1)

    @property
    def _columns_begin(self) -> int:
        return rounded_up(self._rows_nbytes)

    @property
    def _values_begin(self) -> int:
        return self._columns_begin + rounded_up(self.max_values)

    @property
    def _values_nbytes(self) -> int:
        return self.max_values * self._value_nbytes

    def _sections(self, encoding: Flat) -> tuple[Flat, Flat, Flat]:
        rows = typed(encoding[: self._rows_nbytes], "uint32")
        return (
            rows,
            encoding[self._columns_begin :][: self.max_values],
            encoding[self._values_begin :][: self._values_nbytes],
        )


class SparseFp16(Rounding, Sparse, format="fp16"):
    """A bit mask, and values rounded to fp16."""


class SparseBf16(Rounding, Sparse, format="bf16"):
    """A bit mask, and values rounded to bf16."""


class SparseFp10(Rounding, Sparse, format="fp10"):
    """A bit mask, and values rounded to fp10."""


class SparseFp8(Rounding, Sparse, format="fp8"):
    """A bit mask, and values rounded to fp8."""


class CsrFp16(Rounding, SparseCsr, format="fp16"):
    """Rows of columns, and values rounded to fp16."""


class CsrFp8(Rounding, SparseCsr, format="fp8"):
    """Rows of columns, and values rounded to fp8."""
