"""Bit masks in torch ops: pack_mask, unpack_mask, masked_gradient. reference_masks.py defines them.

Enters: flat tensors on any device, raw bytes and a dtype's name. Leaves: nothing, results go into the tensor that was
handed in. The one idea: eight flags are eight bytes, and these are one 64-bit number. One multiplication gathers their
lowest bits in the highest byte, another one spreads a byte over eight.
"""

from __future__ import annotations

import numpy as np
import torch

from vdnn.codecs.kernels.element_types import FLOATS, element_nbytes, require
from vdnn.codecs.kernels.reference_masks import GRADIENTS, of_bits
from vdnn.codecs.kernels.tests_of_elements import Test
from vdnn.codecs.kernels.torch_chunks import elements, in_chunks, in_rows, pattern, signed

# Bit 8 i + (56 - 7 i) = 56 + i of the product is flag i. No two of its other terms share a place, so nothing carries.
_GATHER = sum(1 << (56 - 7 * flag) for flag in range(8))
_REPEAT = sum(1 << (8 * byte) for byte in range(8))
_OWN_BITS = signed(sum(1 << (9 * byte) for byte in range(8)), 64)  # bit i of byte i


def packed(flags: torch.Tensor) -> torch.Tensor:
    """Flags as the bytes of a mask, the first flag lowest; what is missing to a whole byte is zero."""
    eight = in_rows(flags.view(torch.uint8), 8).view(torch.int64).view(-1)
    return (eight * _GATHER).bitwise_right_shift_(56).to(torch.uint8)


def unpacked(bits: torch.Tensor, chunk: slice) -> torch.Tensor:
    """One bool per element of the chunk."""
    spread = bits[of_bits(chunk)].to(torch.int64).mul_(_REPEAT).bitwise_and_(_OWN_BITS)
    return spread.view(torch.uint8)[: chunk.stop - chunk.start] != 0


def passes(raw: torch.Tensor, dtype: str, test: Test, low: float, high: float) -> torch.Tensor:
    """One bool per element. Comparisons are ordered: any of them is false for NaN."""
    if test is Test.NONZERO:
        return raw != 0
    x = raw.view(getattr(torch, dtype))
    x = x if dtype == "float64" else x.to(torch.float32)
    least, most = (rounded(bound, dtype) for bound in (low, high))
    match test:
        case Test.ABOVE:
            return (x <= least).logical_not_()
        case Test.GREATER:
            return x > least
        case Test.INSIDE:
            return (x <= least).logical_or_(x >= most).logical_not_()
        case _:
            return (x > least).logical_and_(x < most)


def rounded(value: float, dtype: str) -> float:
    """A number in the type that elements of this dtype are compared or multiplied in."""
    with np.errstate(all="ignore"):  # beyond the type it is infinity
        return float(np.array(value).astype("float64" if dtype == "float64" else "float32"))


def pack_mask(
    source: torch.Tensor,
    dtype: str,
    test: Test,
    low: float,
    high: float,
    bits: torch.Tensor,
    *,
    threads: int | None = None,
) -> None:
    """bits[i] = whether source[i] passes the test."""
    if test != Test.NONZERO:
        require(dtype, FLOATS, f"the test {Test(test).name}")
    raw = elements(source, element_nbytes(dtype))
    for chunk in in_chunks(raw.numel()):
        bits[of_bits(chunk)] = packed(passes(raw[chunk], dtype, Test(test), low, high))


def unpack_mask(
    bits: torch.Tensor, target: torch.Tensor, dtype: str, on: float, off: float, *, threads: int | None = None
) -> None:
    """target[i] = on if bits[i] else off, rounded to the dtype."""
    raw, yes, no = elements(target, element_nbytes(dtype)), pattern(on, dtype), pattern(off, dtype)
    for chunk in in_chunks(raw.numel()):
        raw[chunk].fill_(no).masked_fill_(unpacked(bits, chunk), yes)


def masked_gradient(
    gradient: torch.Tensor,
    bits: torch.Tensor,
    target: torch.Tensor,
    dtype: str,
    on: float,
    off: float,
    zero_off: bool,
    *,
    threads: int | None = None,
) -> None:
    """target[i] = gradient[i] * (on if bits[i] else off), or +0.0 where the bit is 0 and zero_off is set.

    `target` may be `gradient`. A NaN that a product makes has the device's own bits, as in PyTorch's ops there.
    """
    require(dtype, GRADIENTS, "masked_gradient")
    raw, result = (elements(tensor, element_nbytes(dtype)) for tensor in (gradient, target))
    for chunk in in_chunks(raw.numel()):
        passing = times(raw[chunk], on, dtype)
        failing = torch.zeros_like(raw[chunk]) if zero_off else times(raw[chunk], off, dtype)
        torch.where(unpacked(bits, chunk), passing, failing, out=result[chunk])


def times(raw: torch.Tensor, factor: float, dtype: str) -> torch.Tensor:
    """Floats times a factor, all as bits. A factor of 1 copies: a product may lose a NaN's payload."""
    by = rounded(factor, dtype)
    return raw if by == 1 else (raw.view(getattr(torch, dtype)) * by).view(raw.dtype)
