"""Short floats in numpy: the definition of reduce and expand. formats.py has the table and the rules.

Enters: float32 values, or packed patterns. Leaves: nothing, results go into the array that was handed in. The one idea:
for a positive float the bits are in the order of the values, so rounding, clamping and flushing are integer arithmetic:
add half of the last place that stays (minus one if that place is even), shift, subtract the difference of the biases,
limit.
"""

from __future__ import annotations

import numpy as np

from vdnn.codecs.kernels.formats import Format, format_of
from vdnn.codecs.kernels.reference_masks import chunks

VALUES_PER_CHUNK = 3 * 2**18  # a multiple of three, so that a chunk of fp10 is whole words
FLOAT32_BIAS, FLOAT32_MANTISSA_BITS = 127, 23
FLOAT32_SIGN, FLOAT32_INFINITY, FLOAT32_NAN = 0x80000000, 0x7F800000, 0x7FC00000


def patterns_of(x: np.ndarray, layout: Format) -> np.ndarray:
    """float32 values as patterns, one uint32 each."""
    bits = x.view(np.uint32)
    magnitude = bits & np.uint32(~FLOAT32_SIGN & 0xFFFFFFFF)
    sign = np.where(bits & np.uint32(FLOAT32_SIGN), np.uint32(layout.sign_bit), np.uint32(0))
    patterns = half_patterns(magnitude) if layout.name == "fp16" else rounded_patterns(magnitude, layout)
    patterns = np.where(magnitude > FLOAT32_INFINITY, layout.nan_pattern, np.minimum(patterns, layout.largest_pattern))
    return patterns.astype(np.uint32) | sign


def rounded_patterns(magnitude: np.ndarray, layout: Format) -> np.ndarray:
    """Positive float32 bits rounded to the format's mantissa, rebiased, below the smallest normal zero (int64).

    bfloat16 has float32's exponents, so nothing is rebiased and its subnormals need no case of their own.
    """
    shift = FLOAT32_MANTISSA_BITS - layout.mantissa_bits
    wide = magnitude.astype(np.int64)
    rounded = (wide + (1 << (shift - 1)) - 1 + (wide >> shift & 1)) >> shift
    patterns = rounded - ((FLOAT32_BIAS - layout.bias) << layout.mantissa_bits)
    smallest = 0 if layout.has_subnormals else 1 << layout.mantissa_bits
    return np.where(patterns < smallest, 0, patterns)


def half_patterns(magnitude: np.ndarray) -> np.ndarray:
    """Positive float32 bits as IEEE half, subnormals included. numpy's own conversion rounds to nearest even."""
    with np.errstate(all="ignore"):
        return magnitude.view(np.float32).astype(np.float16).view(np.uint16)


def values_of(patterns: np.ndarray, layout: Format) -> np.ndarray:
    """Patterns, one uint32 each, as float32."""
    magnitude = patterns & np.uint32(layout.sign_bit - 1)
    sign = np.where(patterns & np.uint32(layout.sign_bit), np.uint32(FLOAT32_SIGN), np.uint32(0))
    if layout.name == "bf16":
        bits = magnitude << np.uint32(16)
    elif layout.name == "fp16":
        bits = half_values(magnitude)
    else:
        shifted = magnitude << np.uint32(FLOAT32_MANTISSA_BITS - layout.mantissa_bits)
        bits = shifted + np.uint32((FLOAT32_BIAS - layout.bias) << FLOAT32_MANTISSA_BITS)
        bits = np.where(magnitude < 1 << layout.mantissa_bits, np.uint32(0), bits)
        bits = np.where(magnitude == layout.nan_pattern, np.uint32(FLOAT32_NAN), bits)
    return (bits | sign).view(np.float32)


def half_values(magnitude: np.ndarray) -> np.ndarray:
    """Positive IEEE half as float32 bits. A NaN becomes quiet and keeps its payload, as in hardware."""
    with np.errstate(all="ignore"):
        numbers = magnitude.astype(np.uint16).view(np.float16).astype(np.float32).view(np.uint32)
    nans = np.uint32(FLOAT32_NAN) | (magnitude << np.uint32(13))
    return np.where(magnitude > 0x7C00, nans, numbers)


def pack_patterns(patterns: np.ndarray, layout: Format) -> np.ndarray:
    """Patterns, one uint32 each, in the bytes they take; an unfinished fp10 word is filled with zeros."""
    if layout.values_per_group == 1:
        return patterns.astype(f"<u{layout.group_nbytes}").view(np.uint8)
    words = np.zeros(3 * -(-len(patterns) // 3), np.uint32)
    words[: len(patterns)] = patterns
    return (words[0::3] | words[1::3] << np.uint32(10) | words[2::3] << np.uint32(20)).astype("<u4").view(np.uint8)


def unpack_patterns(packed: np.ndarray, count: int, layout: Format) -> np.ndarray:
    """The first `count` patterns, one uint32 each."""
    words = packed.view(f"<u{layout.group_nbytes}").astype(np.uint32)
    if layout.values_per_group == 3:
        words = np.stack([words >> np.uint32(10 * k) & np.uint32(0x3FF) for k in range(3)], axis=1).reshape(-1)
    return words[:count]


def bytes_of(chunk: slice, layout: Format) -> slice:
    """The packed bytes of these elements; a chunk begins at a whole group."""
    groups = slice(chunk.start // layout.values_per_group, -(-chunk.stop // layout.values_per_group))
    return slice(groups.start * layout.group_nbytes, groups.stop * layout.group_nbytes)


def reduce(source: np.ndarray, format: str, target: np.ndarray, *, threads: int | None = None) -> None:
    """float32 values in `format`, packed into `target`."""
    layout = format_of(format)
    for chunk in chunks(len(source), VALUES_PER_CHUNK):
        target[bytes_of(chunk, layout)] = pack_patterns(patterns_of(source[chunk], layout), layout)


def expand(source: np.ndarray, format: str, target: np.ndarray, *, threads: int | None = None) -> None:
    """Packed patterns as float32 values; how many there are is target's length."""
    layout = format_of(format)
    for chunk in chunks(len(target), VALUES_PER_CHUNK):
        packed = source[bytes_of(chunk, layout)]
        target[chunk] = values_of(unpack_patterns(packed, chunk.stop - chunk.start, layout), layout)
