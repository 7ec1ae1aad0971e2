"""Short floats in torch ops: reduce and expand. reference_floats.py defines them, formats.py has the table and rules.

Enters: float32 values, or packed patterns, on any device. Leaves: nothing, results go into the tensor that was handed
in. The one idea is the reference's: rounding, clamping and flushing are integer arithmetic on the bits. A device's own
conversions differ in what they make of a NaN and of what is too large, and none of them knows fp10.
"""

from __future__ import annotations

import torch

from vdnn.codecs.kernels.formats import Format, format_of
from vdnn.codecs.kernels.reference_floats import (
    FLOAT32_BIAS,
    FLOAT32_INFINITY,
    FLOAT32_MANTISSA_BITS,
    FLOAT32_NAN,
    bytes_of,
)
from vdnn.codecs.kernels.torch_chunks import elements, in_chunks, in_rows

_MAGNITUDE = 0x7FFFFFFF  # all bits of a float32 but the sign
_HALF_SMALLEST = 2.0**-24  # fp16's smallest subnormal; a power of two, so multiples of it are exact
_HALF_NORMAL = (FLOAT32_BIAS - 14) << FLOAT32_MANTISSA_BITS  # 2**-14, fp16's smallest normal, as a float32
_HALF_INFINITY = 0x7C00
_LANE_BITS = 10


def patterns_of(bits: torch.Tensor, layout: Format) -> torch.Tensor:
    """The bits of float32 values (int32) as patterns (int32)."""
    shift = FLOAT32_MANTISSA_BITS - layout.mantissa_bits
    smallest_normal = 1 << layout.mantissa_bits
    magnitude = bits & _MAGNITUDE
    is_nan = magnitude > FLOAT32_INFINITY
    magnitude.clamp_(max=FLOAT32_INFINITY)  # so that rounding a NaN cannot overflow
    pattern = (magnitude >> shift).bitwise_and_(1).add_(magnitude).add_((1 << (shift - 1)) - 1)
    pattern = pattern.bitwise_right_shift_(shift).sub_((FLOAT32_BIAS - layout.bias) * smallest_normal)
    if layout.name == "fp16":
        pattern = torch.where(pattern < smallest_normal, half_subnormals(magnitude), pattern)
    elif not layout.has_subnormals:
        pattern.masked_fill_(pattern < smallest_normal, 0)
    pattern.clamp_(max=layout.largest_pattern).masked_fill_(is_nan, layout.nan_pattern)
    return pattern.bitwise_or_((bits >> 31).bitwise_and_(layout.sign_bit))


def half_subnormals(magnitude: torch.Tensor) -> torch.Tensor:
    """Positive float32 bits below 2**-14 as multiples of 2**-24, to nearest even; more become 2**-14.

    The product is exact, or of a number so small that it rounds to zero, even where a device flushes subnormals.
    """
    small = magnitude.clamp(max=_HALF_NORMAL).view(torch.float32)
    return (small / _HALF_SMALLEST).round_().to(torch.int32)


def values_of(pattern: torch.Tensor, layout: Format) -> torch.Tensor:
    """Patterns (int32) as the bits of float32 values (int32)."""
    shift = FLOAT32_MANTISSA_BITS - layout.mantissa_bits
    smallest_normal = 1 << layout.mantissa_bits
    magnitude = pattern & (layout.sign_bit - 1)
    bits = (magnitude << shift).add_((FLOAT32_BIAS - layout.bias) << FLOAT32_MANTISSA_BITS)
    if layout.name == "fp16":
        subnormal = (magnitude.to(torch.float32) * _HALF_SMALLEST).view(torch.int32)
        bits = torch.where(magnitude < smallest_normal, subnormal, bits)
        bits.masked_fill_(magnitude == _HALF_INFINITY, FLOAT32_INFINITY)
        bits = torch.where(magnitude > _HALF_INFINITY, (magnitude << shift).bitwise_or_(FLOAT32_NAN), bits)
    elif not layout.has_subnormals:
        bits.masked_fill_(magnitude < smallest_normal, 0)
        bits.masked_fill_(magnitude == layout.nan_pattern, FLOAT32_NAN)
    sign_place = layout.exponent_bits + layout.mantissa_bits
    return bits.bitwise_or_((pattern & layout.sign_bit).bitwise_left_shift_(31 - sign_place))


def reduce(source: torch.Tensor, format: str, target: torch.Tensor, *, threads: int | None = None) -> None:
    """float32 values in `format`, packed into `target`."""
    layout, bits = format_of(format), source.view(torch.int32)
    for chunk in in_chunks(bits.numel()):
        lanes = in_rows(patterns_of(bits[chunk], layout), layout.values_per_group)
        words = lanes[:, 0]
        for lane in range(1, layout.values_per_group):
            words = words | (lanes[:, lane] << (_LANE_BITS * lane))
        elements(target[bytes_of(chunk, layout)], layout.group_nbytes).copy_(words)


def expand(source: torch.Tensor, format: str, target: torch.Tensor, *, threads: int | None = None) -> None:
    """Packed patterns as float32 values; how many there are is target's length."""
    layout, bits = format_of(format), target.view(torch.int32)
    for chunk in in_chunks(bits.numel()):
        words = elements(source[bytes_of(chunk, layout)], layout.group_nbytes).to(torch.int32)
        lanes = [pattern_in(words >> (_LANE_BITS * lane), layout) for lane in range(layout.values_per_group)]
        patterns = torch.stack(lanes, dim=1).view(-1) if len(lanes) > 1 else lanes[0]
        bits[chunk] = values_of(patterns[: chunk.stop - chunk.start], layout)


def pattern_in(word: torch.Tensor, layout: Format) -> torch.Tensor:
    """The lowest pattern of a group, without what surrounds it."""
    return word & (2 * layout.sign_bit - 1)
