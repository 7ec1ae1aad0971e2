"""Bit masks in numpy: the definition of pack_mask, unpack_mask and masked_gradient.

Enters: flat arrays, raw bytes and a dtype's name. Leaves: nothing, results go into the array that was handed in. Bit
i % 8 of byte i // 8 belongs to element i; bits past the last element are zero.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from vdnn.codecs.kernels.element_types import FLOATS, as_unsigned, element_bits, element_nbytes, require, widened
from vdnn.codecs.kernels.tests_of_elements import Test

ELEMENTS_PER_CHUNK = 2**20  # worked on at once: temporaries stay within some MiB whatever the array's size
GRADIENTS = ("float32", "float64")


def chunks(n: int, size: int = ELEMENTS_PER_CHUNK) -> Iterator[slice]:
    """[0, n) in slices of `size`."""
    return (slice(begin, min(begin + size, n)) for begin in range(0, n, size))


def of_elements(chunk: slice, nbytes: int) -> slice:
    """The bytes of these elements."""
    return slice(chunk.start * nbytes, chunk.stop * nbytes)


def of_bits(chunk: slice) -> slice:
    """The mask bytes of these elements; a chunk begins at a whole byte."""
    return slice(chunk.start // 8, -(-chunk.stop // 8))


def unpacked(bits: np.ndarray, chunk: slice) -> np.ndarray:
    """One bool per element of the chunk."""
    return np.unpackbits(bits[of_bits(chunk)], count=chunk.stop - chunk.start, bitorder="little").view(bool)


def passes(raw: np.ndarray, dtype: str, test: Test, low: float, high: float) -> np.ndarray:
    """One bool per element: the comparison of `test`, in the type aten compares in."""
    if test is Test.NONZERO:
        return as_unsigned(raw, element_nbytes(dtype)) != 0
    require(dtype, FLOATS, f"the test {test.name}")
    x = widened(raw, dtype)
    least, most = np.array([low, high]).astype(x.dtype)
    match test:
        case Test.ABOVE:
            return ~(x <= least)
        case Test.GREATER:
            return x > least
        case Test.INSIDE:
            return ~((x <= least) | (x >= most))
        case _:
            return (x > least) & (x < most)


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
    nbytes = element_nbytes(dtype)
    for chunk in chunks(len(source) // nbytes):
        with np.errstate(all="ignore"):  # comparing a signalling NaN, or a bound beyond float32, is no mistake here
            answers = passes(source[of_elements(chunk, nbytes)], dtype, Test(test), low, high)
        bits[of_bits(chunk)] = np.packbits(answers, bitorder="little")


def unpack_mask(
    bits: np.ndarray, target: np.ndarray, dtype: str, on: float, off: float, *, threads: int | None = None
) -> None:
    """target[i] = on if bits[i] else off, rounded to the dtype."""
    elements = as_unsigned(target, element_nbytes(dtype))
    yes, no = (elements.dtype.type(element_bits(value, dtype)) for value in (on, off))
    for chunk in chunks(len(elements)):
        elements[chunk] = np.where(unpacked(bits, chunk), yes, no)


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
    """target[i] = gradient[i] * (on if bits[i] else off), or +0.0 where the bit is 0 and zero_off is set.

    A factor of exactly 1 copies the bits, so that not even a signalling NaN changes. `target` may be `gradient`.
    """
    require(dtype, GRADIENTS, "masked_gradient")
    g, result = gradient.view(dtype), target.view(dtype)
    with np.errstate(all="ignore"):  # inf * 0 is NaN as in the op itself
        for chunk in chunks(len(g)):
            passing, failing = times(g[chunk], on), 0.0 if zero_off else times(g[chunk], off)
            result[chunk] = np.where(unpacked(bits, chunk), passing, failing)


def times(g: np.ndarray, factor: float) -> np.ndarray:
    rounded = g.dtype.type(factor)
    return g if rounded == 1 else g * rounded
