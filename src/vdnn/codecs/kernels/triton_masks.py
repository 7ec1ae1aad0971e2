"""Bit masks in Triton: pack_mask, unpack_mask, masked_gradient. reference_masks.py defines them.

Enters: flat tensors on an accelerator, raw bytes and a dtype's name. Leaves: nothing, results go into the tensor that
was handed in. The one idea: a program owns whole bytes of the mask, so no two programs write to the same one.
"""

# Constants of a kernel are in capitals, as in Triton's own. An `if` on one of them has its `else` even after a return,
# because only the branch taken is compiled.
# ruff: noqa: N803, RET505

from __future__ import annotations

import torch
import triton
import triton.language as tl

from vdnn.codecs.kernels.element_types import FLOATS, element_nbytes, require
from vdnn.codecs.kernels.reference_masks import GRADIENTS
from vdnn.codecs.kernels.tests_of_elements import Test
from vdnn.codecs.kernels.triton_launch import elements, launch, num_programs, pattern

BYTES = 256  # of the mask per program: 2048 elements, 16 for each of the 128 threads
BLOCK = 8 * BYTES
TRITON_TYPES = dict(zip(GRADIENTS, (tl.float32, tl.float64), strict=True))

_ABOVE = tl.constexpr(Test.ABOVE.value)
_GREATER = tl.constexpr(Test.GREATER.value)
_INSIDE = tl.constexpr(Test.INSIDE.value)
_NONZERO = tl.constexpr(Test.NONZERO.value)


@triton.jit
def widened(raw: tl.tensor, DTYPE: tl.constexpr) -> tl.tensor:
    """Integers as the floats they spell, 16-bit ones in float32. bfloat16 is the upper half of a float32."""
    if DTYPE == "bfloat16":
        return (raw.to(tl.int32) << 16).to(tl.float32, bitcast=True)
    elif DTYPE == "float16":
        return raw.to(tl.float16, bitcast=True).to(tl.float32)
    elif DTYPE == "float32":
        return raw.to(tl.float32, bitcast=True)
    else:
        return raw.to(tl.float64, bitcast=True)


@triton.jit
def passes(raw: tl.tensor, low: tl.tensor, high: tl.tensor, TEST: tl.constexpr, DTYPE: tl.constexpr) -> tl.tensor:
    """Whether each element passes the test. Comparisons are ordered: any of them is false for NaN."""
    if TEST == _NONZERO:
        return raw != 0
    else:
        x = widened(raw, DTYPE)
        least = bound(low, x)
        most = bound(high, x)
        if TEST == _ABOVE:
            return ~(x <= least)
        elif TEST == _GREATER:
            return x > least
        elif TEST == _INSIDE:
            return ~((x <= least) | (x >= most))
        else:
            return (x > least) & (x < most)


@triton.jit
def bound(bits: tl.tensor, x: tl.tensor) -> tl.tensor:
    """A bound, handed over as bits, in the type of x."""
    if x.dtype == tl.float32:
        return tl.cast(bits, tl.int32).to(tl.float32, bitcast=True)
    else:
        return tl.cast(bits, tl.int64).to(tl.float64, bitcast=True)


@triton.jit
def packed_bits(flags: tl.tensor) -> tl.tensor:
    """[bytes, 8] flags as bytes, the first flag lowest."""
    lane = tl.arange(0, 8)[None, :]
    return tl.sum(flags.to(tl.int32) << lane, axis=1).to(tl.uint8)


@triton.jit
def bit_at(bits: tl.tensor, at: tl.tensor, inside: tl.tensor) -> tl.tensor:
    """Whether the bits of these elements are set; of elements that are not inside, none is."""
    byte = tl.load(bits + at // 8, mask=inside, other=0).to(tl.int32)
    return ((byte >> (at % 8).to(tl.int32)) & 1) != 0


@triton.jit(do_not_specialize=["low", "high"])
def _pack_mask(
    source: tl.tensor,
    bits: tl.tensor,
    n: tl.int64,
    low: tl.int64,
    high: tl.int64,
    TEST: tl.constexpr,
    DTYPE: tl.constexpr,
    BYTES: tl.constexpr,
) -> None:
    byte = tl.program_id(0).to(tl.int64) * BYTES + tl.arange(0, BYTES)
    at = byte[:, None] * 8 + tl.arange(0, 8)[None, :]
    raw = tl.load(source + at, mask=at < n, other=0)
    flags = passes(raw, low, high, TEST, DTYPE) & (at < n)
    tl.store(bits + byte, packed_bits(flags), mask=byte * 8 < n)


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
    compared = "float64" if dtype == "float64" else "float32"
    bounds = pattern(low, compared), pattern(high, compared)
    programs = num_programs(raw.numel(), BLOCK)
    launch(_pack_mask, programs, raw, bits, raw.numel(), *bounds, TEST=int(test), DTYPE=dtype, BYTES=BYTES)


@triton.jit(do_not_specialize=["on", "off"])
def _unpack_mask(
    bits: tl.tensor, target: tl.tensor, n: tl.int64, on: tl.int64, off: tl.int64, BLOCK: tl.constexpr
) -> None:
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    yes = tl.cast(on, target.dtype.element_ty)
    no = tl.cast(off, target.dtype.element_ty)
    tl.store(target + at, tl.where(bit_at(bits, at, at < n), yes, no), mask=at < n)


def unpack_mask(
    bits: torch.Tensor, target: torch.Tensor, dtype: str, on: float, off: float, *, threads: int | None = None
) -> None:
    """target[i] = on if bits[i] else off, rounded to the dtype."""
    raw = elements(target, element_nbytes(dtype))
    values = pattern(on, dtype), pattern(off, dtype)
    launch(_unpack_mask, num_programs(raw.numel(), BLOCK), bits, raw, raw.numel(), *values, BLOCK=BLOCK)


@triton.jit
def times(raw: tl.tensor, factor: tl.tensor, IS_ONE: tl.constexpr, FLOAT: tl.constexpr) -> tl.tensor:
    """Floats times a factor, all as bits. A factor of 1 copies: a GPU's product would lose a NaN's payload."""
    if IS_ONE:
        return raw
    else:
        product = raw.to(FLOAT, bitcast=True) * tl.cast(factor, raw.dtype).to(FLOAT, bitcast=True)
        return product.to(raw.dtype, bitcast=True)


@triton.jit(do_not_specialize=["on", "off"])
def _masked_gradient(
    gradient: tl.tensor,
    bits: tl.tensor,
    target: tl.tensor,
    n: tl.int64,
    on: tl.int64,
    off: tl.int64,
    ON_IS_ONE: tl.constexpr,
    OFF_IS_ONE: tl.constexpr,
    ZERO_OFF: tl.constexpr,
    FLOAT: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    raw = tl.load(gradient + at, mask=at < n, other=0)
    passing = times(raw, on, ON_IS_ONE, FLOAT)
    failing = tl.zeros_like(raw) if ZERO_OFF else times(raw, off, OFF_IS_ONE, FLOAT)
    tl.store(target + at, tl.where(bit_at(bits, at, at < n), passing, failing), mask=at < n)


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
    one, yes, no = (pattern(value, dtype) for value in (1.0, on, off))
    programs = num_programs(raw.numel(), BLOCK)
    constants = {"ON_IS_ONE": yes == one, "OFF_IS_ONE": no == one, "ZERO_OFF": zero_off, "FLOAT": TRITON_TYPES[dtype]}
    launch(_masked_gradient, programs, raw, bits, result, raw.numel(), yes, no, **constants, BLOCK=BLOCK)
