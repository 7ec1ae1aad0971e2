"""Short floats in Triton: reduce and expand. reference_floats.py defines them, formats.py has the table and the rules.

Enters: float32 values, or packed patterns. Leaves: nothing, results go into the tensor that was handed in. The one idea
is the reference's: rounding, clamping and flushing are integer arithmetic on the bits. A device's own conversions
differ in what they make of a NaN and of what is too large, and none of them knows fp10.
"""

# Constants of a kernel are in capitals, as in Triton's own.
# ruff: noqa: N803

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from vdnn.codecs.kernels.formats import format_of
from vdnn.codecs.kernels.reference_floats import FLOAT32_BIAS, FLOAT32_INFINITY, FLOAT32_MANTISSA_BITS, FLOAT32_NAN
from vdnn.codecs.kernels.triton_launch import elements, launch, num_programs

BLOCK = 1024  # groups of values per program: eight for each of the 128 threads

_INFINITY = tl.constexpr(FLOAT32_INFINITY)
_NAN = tl.constexpr(FLOAT32_NAN)
_MAGNITUDE = tl.constexpr(0x7FFFFFFF)  # all bits of a float32 but the sign
_MANTISSA = tl.constexpr(0x7FFFFF)
_IMPLIED_ONE = tl.constexpr(0x800000)  # the bit of a normal float32 that is not written
_HALF_INFINITY = tl.constexpr(0x7C00)
_HALF_SMALLEST = tl.constexpr(2.0**-24)  # fp16's smallest subnormal; a power of two, so multiples of it are exact


class ShortFloat(NamedTuple):
    """What a kernel is compiled for: the numbers of a `Format`."""

    name: str
    shift: int
    """Places of a float32's mantissa that go."""
    rebias: int
    smallest_normal: int
    largest: int
    nan: int
    sign_place: int
    group: int


def layout_of(format: str) -> ShortFloat:
    its = format_of(format)
    shift, rebias = FLOAT32_MANTISSA_BITS - its.mantissa_bits, FLOAT32_BIAS - its.bias
    sign_place, smallest_normal = its.exponent_bits + its.mantissa_bits, 1 << its.mantissa_bits
    return ShortFloat(
        format, shift, rebias, smallest_normal, its.largest_pattern, its.nan_pattern, sign_place, its.values_per_group
    )


@triton.jit
def patterns_of(bits: tl.tensor, LAYOUT: tl.constexpr) -> tl.tensor:
    """The bits of float32 values (int32) as patterns (int32)."""
    magnitude = tl.minimum(bits & _MAGNITUDE, _INFINITY)  # so that rounding a NaN cannot overflow
    kept = magnitude >> LAYOUT.shift
    pattern = (magnitude + (1 << (LAYOUT.shift - 1)) - 1 + (kept & 1)) >> LAYOUT.shift
    pattern -= LAYOUT.rebias * LAYOUT.smallest_normal
    if LAYOUT.name == "fp16":
        pattern = tl.where(pattern < LAYOUT.smallest_normal, half_subnormals(magnitude), pattern)
    elif LAYOUT.name != "bf16":  # whose exponents are float32's, subnormals included
        pattern = tl.where(pattern < LAYOUT.smallest_normal, 0, pattern)
    pattern = tl.where((bits & _MAGNITUDE) > _INFINITY, LAYOUT.nan, tl.minimum(pattern, LAYOUT.largest))
    return pattern | (((bits >> 31) & 1) << LAYOUT.sign_place)


@triton.jit
def half_subnormals(magnitude: tl.tensor) -> tl.tensor:
    """Positive float32 bits below 2**-14 as multiples of 2**-24, to nearest even.

    The last place that stays is 2**-24, so the smaller the exponent the more places go: 14 of them below 2**-14.
    What is below 2**-25 rounds to zero, and so does a subnormal float32, although its leading bit is no 1.
    """
    significand = (magnitude & _MANTISSA) | _IMPLIED_ONE
    places = tl.maximum(tl.minimum(126 - (magnitude >> 23), 30), 1)
    return (significand + (1 << (places - 1)) - 1 + ((significand >> places) & 1)) >> places


@triton.jit
def values_of(pattern: tl.tensor, LAYOUT: tl.constexpr) -> tl.tensor:
    """Patterns (int32) as the bits of float32 values (int32)."""
    magnitude = pattern & ((1 << LAYOUT.sign_place) - 1)
    bits = (magnitude << LAYOUT.shift) + (LAYOUT.rebias << 23)
    if LAYOUT.name == "fp16":
        subnormal = (magnitude.to(tl.float32) * _HALF_SMALLEST).to(tl.int32, bitcast=True)
        bits = tl.where(magnitude < LAYOUT.smallest_normal, subnormal, bits)
        bits = tl.where(magnitude == _HALF_INFINITY, _INFINITY, bits)
        bits = tl.where(magnitude > _HALF_INFINITY, _NAN | (magnitude << LAYOUT.shift), bits)
    elif LAYOUT.name != "bf16":
        bits = tl.where(magnitude < LAYOUT.smallest_normal, 0, bits)
        bits = tl.where(magnitude == LAYOUT.nan, _NAN, bits)
    return bits | ((pattern >> LAYOUT.sign_place) << 31)


@triton.jit
def _reduce(
    source: tl.tensor,
    target: tl.tensor,
    n: tl.int64,
    LAYOUT: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    group = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    word = tl.zeros([BLOCK], tl.int32)
    for lane in tl.static_range(GROUP):
        at = group * GROUP + lane
        bits = tl.load(source + at, mask=at < n, other=0)
        word |= patterns_of(bits, LAYOUT) << (10 * lane)
    tl.store(target + group, word.to(target.dtype.element_ty), mask=group * GROUP < n)


def reduce(source: torch.Tensor, format: str, target: torch.Tensor, *, threads: int | None = None) -> None:
    """float32 values in `format`, packed into `target`."""
    n, layout, group_nbytes = source.numel(), layout_of(format), format_of(format).group_nbytes
    words, programs = elements(target, group_nbytes), num_programs(n, BLOCK * layout.group)
    launch(_reduce, programs, source.view(torch.int32), words, n, LAYOUT=layout, GROUP=layout.group, BLOCK=BLOCK)


@triton.jit
def _expand(
    source: tl.tensor,
    target: tl.tensor,
    n: tl.int64,
    LAYOUT: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    group = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    word = tl.load(source + group, mask=group * GROUP < n, other=0).to(tl.int32)
    for lane in tl.static_range(GROUP):
        at = group * GROUP + lane
        tl.store(target + at, values_of(pattern_in(word, lane, LAYOUT), LAYOUT), mask=at < n)


@triton.jit
def pattern_in(word: tl.tensor, lane: tl.tensor, LAYOUT: tl.constexpr) -> tl.tensor:
    """One pattern of a group, without what surrounds it."""
    return (word >> (10 * lane)) & ((2 << LAYOUT.sign_place) - 1)


def expand(source: torch.Tensor, format: str, target: torch.Tensor, *, threads: int | None = None) -> None:
    """Packed patterns as float32 values; how many there are is target's length."""
    n, layout, group_nbytes = target.numel(), layout_of(format), format_of(format).group_nbytes
    words, programs = elements(source, group_nbytes), num_programs(n, BLOCK * layout.group)
    launch(_expand, programs, words, target.view(torch.int32), n, LAYOUT=layout, GROUP=layout.group, BLOCK=BLOCK)
