"""The short floats of Gist's delayed precision reduction: layout, limits and packed size.

Enters: a format's name. Leaves: its `Format`, and the bytes that n values take. The one idea: a value is rounded once,
to nearest even, and then stays a number. What is too large becomes the largest finite number and not infinity, since
one infinity in a saved feature map would make every gradient behind it NaN.

    format   sign exponent mantissa  bias  largest   smallest normal   NaN      packing
    fp16      1      5        10      15    65504     2**-14            0x7E00   2 bytes
    bf16      1      8         7     127    3.39e38   2**-126           0x7FC0   2 bytes
    fp10      1      5         4      15    122880    2**-14            0x1FF    3 to a little-endian 32-bit word
    fp8       1      4         3       7    448       2**-6             0x7F     1 byte

Element k of fp10 is in bits 10 * (k % 3) and up of word k // 3; the word's top two bits are zero.

Subnormals. fp16 and bf16 have them, as hardware does. fp10 and fp8 have none: |x| is rounded as if exponents had no
lower end, and a result below the smallest normal number becomes zero with x's sign. A number just below the smallest
normal may therefore still round up to it. Reading, an exponent field of zero means zero.

NaN. Every NaN becomes the one bit pattern in the table, with x's sign. In fp10 and fp8 it is the only pattern that is
not a number; the rest of the top exponent is ordinary numbers. A NaN is read as float32 0x7FC00000 with the pattern's
sign. Patterns that are never written (infinities and other NaNs of fp16 and bf16) are read as IEEE 754 says.

Gist (Jain et al., ISCA 2018) describes FP16, FP10 and FP8 with these widths, clamping and no subnormals.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Format:
    """A float of 1 + exponent_bits + mantissa_bits bits. `largest_pattern` and `nan_pattern` are without the sign."""

    name: str
    exponent_bits: int
    mantissa_bits: int
    bias: int
    largest_pattern: int
    nan_pattern: int
    has_subnormals: bool
    group_nbytes: int
    values_per_group: int = 1
    """So many values share a group of `group_nbytes`: more than one where the bits of one fill no byte."""

    @property
    def sign_bit(self) -> int:
        return 1 << (self.exponent_bits + self.mantissa_bits)


FORMATS = {
    "fp16": Format("fp16", 5, 10, 15, 0x7BFF, 0x7E00, True, 2),
    "bf16": Format("bf16", 8, 7, 127, 0x7F7F, 0x7FC0, True, 2),
    "fp10": Format("fp10", 5, 4, 15, 0x1FE, 0x1FF, False, 4, values_per_group=3),
    "fp8": Format("fp8", 4, 3, 7, 0x7E, 0x7F, False, 1),
}


def format_of(name: str) -> Format:
    """The format of that name; another name raises a ValueError with those that exist."""
    if name not in FORMATS:
        raise ValueError(f"no short float format is called {name!r}. There are: {', '.join(FORMATS)}.")
    return FORMATS[name]


def reduced_nbytes(n: int, format: str) -> int:
    """Bytes that n values take in this format."""
    layout = format_of(format)
    return layout.group_nbytes * -(-n // layout.values_per_group)
