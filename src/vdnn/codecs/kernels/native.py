"""The codec kernels in C, over the same flat numpy arrays as the reference and equal to it bit for bit.

Enters: flat C-contiguous arrays. Leaves: results in preallocated arrays. The one idea: C gets bare pointers, so what it
will touch is checked here: dtype, contiguity and length of every array. `threads=None` uses as many threads as OpenMP
would (OMP_NUM_THREADS, or the CPUs this process may run on). Importing this raises an ImportError that says why when
there is no usable library.
"""

from __future__ import annotations

import ctypes

import numpy as np

from vdnn.codecs.kernels.element_types import FLOATS, element_bits, element_nbytes, require
from vdnn.codecs.kernels.formats import reduced_nbytes
from vdnn.codecs.kernels.native_library import LIBRARY
from vdnn.codecs.kernels.reference_masks import GRADIENTS
from vdnn.codecs.kernels.reference_sparse import check_row_offsets, check_sparse
from vdnn.codecs.kernels.sparse_layout import (
    CSR_FORMATS,
    csr_value_nbytes,
    mask_nbytes,
    num_blocks,
    num_rows,
    require_format,
)
from vdnn.codecs.kernels.tests_of_elements import Test
from vdnn.codecs.kernels.window import Window

ELEMENTS = {dtype: number for number, dtype in enumerate(FLOATS)}  # enum element in csrc/kernels.h
UNSIGNED = len(ELEMENTS)
FORMAT_NUMBERS = {"fp16": 0, "bf16": 1, "fp10": 2, "fp8": 3, "raw": 4}  # enum format in csrc/kernels.h


def address(array: np.ndarray, dtype: type[np.generic], count: int, what: str, *, written: bool = False) -> int:
    """The pointer to at least `count` elements; a ValueError when C must not touch this array."""
    flags = array.flags
    if array.ndim != 1 or array.dtype != dtype or not flags.c_contiguous or (written and not flags.writeable):
        raise ValueError(f"{what} must be a flat contiguous {'writeable ' * written}array of {np.dtype(dtype)}")
    if len(array) < count:
        raise ValueError(f"{what} has {len(array)} elements of {np.dtype(dtype)}, {count} are needed")
    return array.ctypes.data


def whole_elements(raw: np.ndarray, nbytes: int, what: str) -> int:
    """How many elements these raw bytes are."""
    if len(raw) % nbytes:
        raise ValueError(f"{what} has {len(raw)} bytes, which is no whole number of {nbytes}-byte elements")
    return len(raw) // nbytes


def pack_mask(
    source: np.ndarray,
    dtype: str,
    test: Test,
    low: float,
    high: float,
    bits: np.ndarray,
    *,
    threads: int | None = None,
) -> None:
    """bits[i] = whether source[i] passes the test."""
    if test != Test.NONZERO:
        require(dtype, FLOATS, f"the test {Test(test).name}")
    nbytes = element_nbytes(dtype)
    n = whole_elements(source, nbytes, "source")
    at, to = address(source, np.uint8, 0, "source"), address(bits, np.uint8, mask_nbytes(n), "bits", written=True)
    LIBRARY.vdnn_pack_mask(at, n, ELEMENTS.get(dtype, UNSIGNED), nbytes, int(test), low, high, to, threads or 0)


def unpack_mask(
    bits: np.ndarray, target: np.ndarray, dtype: str, on: float, off: float, *, threads: int | None = None
) -> None:
    """target[i] = on if bits[i] else off, rounded to the dtype."""
    nbytes = element_nbytes(dtype)
    n = whole_elements(target, nbytes, "target")
    at, to = address(bits, np.uint8, mask_nbytes(n), "bits"), address(target, np.uint8, 0, "target", written=True)
    LIBRARY.vdnn_unpack_mask(at, n, nbytes, element_bits(on, dtype), element_bits(off, dtype), to, threads or 0)


def masked_gradient(
    gradient: np.ndarray,
    bits: np.ndarray,
    target: np.ndarray,
    dtype: str,
    on: float,
    off: float,
    zero_off: bool,
    *,
    threads: int | None = None,
) -> None:
    """target[i] = gradient[i] * (on if bits[i] else off), or +0.0 where the bit is 0 and zero_off is set."""
    require(dtype, GRADIENTS, "masked_gradient")
    nbytes = element_nbytes(dtype)
    n = whole_elements(gradient, nbytes, "gradient")
    at, to = address(gradient, np.uint8, 0, "gradient"), address(target, np.uint8, n * nbytes, "target", written=True)
    mask = address(bits, np.uint8, mask_nbytes(n), "bits")
    LIBRARY.vdnn_masked_gradient(at, mask, n, nbytes, on, off, int(zero_off), to, threads or 0)


def extents(window: Window) -> ctypes.Array[ctypes.c_int64]:
    """The window's numbers in the order csrc/geometry.h reads them."""
    axes = (window.kernel, window.stride, window.padding, window.dilation, window.input, window.output)
    return (ctypes.c_int64 * 20)(*(extent for axis in axes for extent in axis), window.outer, window.inner)


def pack_window(indices: np.ndarray, window: Window, taps: np.ndarray, *, threads: int | None = None) -> int:
    """taps[i] = where in its window indices[i] lies; two taps to a byte, the even one low, when 4 bits are enough.

    Returns the first element whose index is not in its window, or how many elements there are.
    """
    at = address(indices, np.int64, window.num_pooled, "indices")
    to = address(taps, np.uint8, window.taps_nbytes, "taps", written=True)
    first = LIBRARY.vdnn_pack_window(at, window.num_pooled, extents(window), to, threads or 0)
    return window.num_pooled if first < 0 else first


def unpack_window(taps: np.ndarray, window: Window, indices: np.ndarray, *, threads: int | None = None) -> None:
    """indices[i] = the index aten had written."""
    at = address(taps, np.uint8, window.taps_nbytes, "taps")
    to = address(indices, np.int64, window.num_pooled, "indices", written=True)
    if not LIBRARY.vdnn_unpack_window(at, window.num_pooled, extents(window), to, threads or 0):
        raise damaged_taps(window)


def window_backward(
    gradient: np.ndarray, taps: np.ndarray, window: Window, target: np.ndarray, *, threads: int | None = None
) -> None:
    """Each gradient is added to the input its output was taken from, in ascending output order within a plane."""
    of = address(gradient, np.float32, window.num_pooled, "gradient")
    at = address(taps, np.uint8, window.taps_nbytes, "taps")
    to = address(target, np.float32, window.num_inputs, "target", written=True)
    if not LIBRARY.vdnn_window_backward(of, at, extents(window), to, threads or 0):
        raise damaged_taps(window)


def damaged_taps(window: Window) -> ValueError:
    return ValueError(
        f"some taps are not positions in a kernel of {window.kernel}, or lead out of an input of {window.input}:"
        " they were not written for this pooling"
    )


def reduce(source: np.ndarray, format: str, target: np.ndarray, *, threads: int | None = None) -> None:
    """float32 values in `format`, packed into `target`."""
    nbytes = reduced_nbytes(len(source), format)
    at = address(source, np.float32, 0, "source")
    to = address(target, np.uint8, nbytes, "target", written=True)
    LIBRARY.vdnn_reduce(at, len(source), FORMAT_NUMBERS[format], to, threads or 0)


def expand(source: np.ndarray, format: str, target: np.ndarray, *, threads: int | None = None) -> None:
    """Packed patterns as float32 values; how many there are is target's length."""
    at = address(source, np.uint8, reduced_nbytes(len(target), format), "source")
    to = address(target, np.float32, 0, "target", written=True)
    LIBRARY.vdnn_expand(at, len(target), FORMAT_NUMBERS[format], to, threads or 0)


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
    n = whole_elements(source, element_nbytes, "source")
    at, mask = address(source, np.uint8, 0, "source"), address(bits, np.uint8, mask_nbytes(n), "bits", written=True)
    offsets = address(starts, np.int64, num_blocks(n) + 1, "starts", written=True)
    to = address(values, np.uint8, 0, "values", written=True)
    return LIBRARY.vdnn_sparse_encode(
        at, n, element_nbytes, FORMAT_NUMBERS[format], mask, offsets, to, len(values), threads or 0
    )


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
    n = whole_elements(target, element_nbytes, "target")
    mask, offsets = (
        address(bits, np.uint8, mask_nbytes(n), "bits"),
        address(starts, np.int64, num_blocks(n) + 1, "starts"),
    )
    at = address(values, np.uint8, int(starts[num_blocks(n)]), "values")
    to = address(target, np.uint8, 0, "target", written=True)
    LIBRARY.vdnn_sparse_decode(
        mask, offsets, at, len(values), n, element_nbytes, FORMAT_NUMBERS[format], to, threads or 0
    )


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
    n = whole_elements(source, 4, "source")
    check_row_offsets(n)
    at, offsets = (
        address(source, np.uint8, 0, "source"),
        address(rows, np.uint32, num_rows(n) + 1, "rows", written=True),
    )
    where = address(columns, np.uint8, 0, "columns", written=True)
    to = address(values, np.uint8, len(columns) * csr_value_nbytes(format), "values", written=True)
    return LIBRARY.vdnn_csr_encode(at, n, FORMAT_NUMBERS[format], offsets, where, to, len(columns), threads or 0)


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
    n = whole_elements(target, 4, "target")
    offsets, count = address(rows, np.uint32, num_rows(n) + 1, "rows"), int(rows[num_rows(n)])
    where = address(columns, np.uint8, count, "columns")
    at = address(values, np.uint8, count * csr_value_nbytes(format), "values")
    to = address(target, np.uint8, 0, "target", written=True)
    LIBRARY.vdnn_csr_decode(offsets, where, at, n, FORMAT_NUMBERS[format], to, threads or 0)
