"""Sparse data in numpy: the definition of sparse_encode, sparse_decode, csr_encode and csr_decode.

Enters: raw elements, or the parts of an encoding. Leaves: how much room the values need; results go into the arrays
that were handed in. sparse_layout.py has the two forms. When the values need more room than they were given, nothing
is written past it, the other outputs are complete, and the caller deals with it.
"""

from __future__ import annotations

import numpy as np

from vdnn.codecs.kernels.element_types import as_unsigned
from vdnn.codecs.kernels.formats import format_of
from vdnn.codecs.kernels.reference_floats import pack_patterns, patterns_of, unpack_patterns, values_of
from vdnn.codecs.kernels.reference_masks import chunks, of_bits, unpacked
from vdnn.codecs.kernels.sparse_layout import (
    CSR_FORMATS,
    ELEMENTS_PER_BLOCK,
    MASK_FORMATS,
    RAW,
    ROW,
    csr_value_nbytes,
    require_format,
    values_nbytes,
)


def check_sparse(element_nbytes: int, format: str) -> None:
    """Two- or four-byte elements; only four-byte ones are floats that can be reduced."""
    require_format(format, MASK_FORMATS, "the mask form")
    if element_nbytes not in (2, 4) or (element_nbytes == 2 and format != RAW):
        raise ValueError(f"elements of {element_nbytes} bytes cannot be kept as {format!r}: 4 bytes, or 2 and 'raw'")


def encoded_values(elements: np.ndarray, format: str) -> np.ndarray:
    """Some elements' bits in the value format, as bytes."""
    if format == RAW:
        return elements.view(np.uint8)
    return pack_patterns(patterns_of(elements.view(np.float32), format_of(format)), format_of(format))


def decoded_values(packed: np.ndarray, count: int, element_nbytes: int, format: str) -> np.ndarray:
    """Bytes in the value format as `count` elements' bits."""
    if format == RAW:
        return as_unsigned(packed, element_nbytes)
    return values_of(unpack_patterns(packed, count, format_of(format)), format_of(format)).view(np.uint32)


def sparse_encode(
    source: np.ndarray,
    element_nbytes: int,
    format: str,
    bits: np.ndarray,
    starts: np.ndarray,
    values: np.ndarray,
    *,
    threads: int | None = None,
) -> int:
    """The elements with any bit set, block by block; returns the bytes they need."""
    check_sparse(element_nbytes, format)
    elements, total = as_unsigned(source, element_nbytes), 0
    starts[0] = 0
    for number, block in enumerate(chunks(len(elements), ELEMENTS_PER_BLOCK)):
        nonzero = elements[block] != 0
        bits[of_bits(block)] = np.packbits(nonzero, bitorder="little")
        begin, total = total, total + values_nbytes(int(nonzero.sum()), element_nbytes, format)
        starts[number + 1] = total
        if total <= len(values):
            values[begin:total] = encoded_values(elements[block][nonzero], format)
    return total


def sparse_decode(
    bits: np.ndarray,
    starts: np.ndarray,
    values: np.ndarray,
    element_nbytes: int,
    format: str,
    target: np.ndarray,
    *,
    threads: int | None = None,
) -> None:
    """Values where the bits are set, zeros elsewhere."""
    check_sparse(element_nbytes, format)
    elements = as_unsigned(target, element_nbytes)
    elements[:] = 0
    for number, block in enumerate(chunks(len(elements), ELEMENTS_PER_BLOCK)):
        nonzero = unpacked(bits, block)
        packed = values[int(starts[number]) : int(starts[number + 1])]
        elements[block][nonzero] = decoded_values(packed, int(nonzero.sum()), element_nbytes, format)


def csr_encode(
    source: np.ndarray,
    format: str,
    rows: np.ndarray,
    columns: np.ndarray,
    values: np.ndarray,
    *,
    threads: int | None = None,
) -> int:
    """The four-byte elements with any bit set, with their columns; returns how many there are."""
    require_format(format, CSR_FORMATS, "the CSR form")
    elements, width, total = source.view(np.uint32), csr_value_nbytes(format), 0
    check_row_offsets(len(elements))
    rows[0] = 0
    for chunk in chunks(len(elements)):
        (places,) = np.nonzero(elements[chunk])
        per_row = np.bincount(places // ROW, minlength=-(-(chunk.stop - chunk.start) // ROW))
        first = chunk.start // ROW
        rows[first + 1 : first + 1 + len(per_row)] = total + np.cumsum(per_row)
        begin, total = total, total + len(places)
        if total <= len(columns):
            columns[begin:total] = places % ROW
            values[begin * width : total * width] = encoded_values(elements[chunk][places], format)
    return total


def check_row_offsets(n: int) -> None:
    if n >= 2**32:
        raise ValueError(f"the CSR form counts non-zeros in 32 bits: {n} elements are too many. Use the mask form.")


def csr_decode(
    rows: np.ndarray,
    columns: np.ndarray,
    values: np.ndarray,
    format: str,
    target: np.ndarray,
    *,
    threads: int | None = None,
) -> None:
    """Values at their columns, zeros elsewhere."""
    require_format(format, CSR_FORMATS, "the CSR form")
    elements, width = target.view(np.uint32), csr_value_nbytes(format)
    elements[:] = 0
    for chunk in chunks(len(elements)):
        mine = rows[chunk.start // ROW : -(-chunk.stop // ROW) + 1].astype(np.int64)
        begin, end = int(mine[0]), int(mine[-1])
        places = np.repeat(np.arange(len(mine) - 1) * ROW, np.diff(mine)) + columns[begin:end]
        elements[chunk][places] = decoded_values(values[begin * width : end * width], end - begin, 4, format)
