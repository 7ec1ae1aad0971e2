"""Sparse data with a bit mask in Triton: sparse_encode, sparse_decode. reference_sparse.py defines them.

Enters: raw elements, or the parts of an encoding, flat tensors on one accelerator. Leaves: how many bytes the values
need; results go into the tensors that were handed in. The one idea: one program per block. A first kernel writes the
mask and counts, a prefix sum over the blocks says where each one's values begin, a second kernel moves them there.
"""

# Constants of a kernel are in capitals, as in Triton's own. An `if` on one of them has its `else` even after a return,
# because only the branch taken is compiled.
# ruff: noqa: N803, RET505

from __future__ import annotations

import torch
import triton
import triton.language as tl

from vdnn.codecs.kernels.formats import format_of
from vdnn.codecs.kernels.reference_sparse import check_sparse
from vdnn.codecs.kernels.sparse_layout import ELEMENTS_PER_BLOCK, RAW
from vdnn.codecs.kernels.triton_floats import ShortFloat, layout_of, pattern_in, patterns_of, values_of
from vdnn.codecs.kernels.triton_launch import elements, launch, num_programs
from vdnn.codecs.kernels.triton_masks import bit_at, packed_bits

NUM_WARPS = 8  # 256 threads share a block: sixteen elements each, with their places, stay in registers


def value_layout(format: str) -> ShortFloat | None:
    """What the kernels are compiled for; None: the element's own bits."""
    return None if format == RAW else layout_of(format)


def word_nbytes(element_nbytes: int, format: str) -> int:
    """What a value is written as: itself, its pattern, or a word of three patterns."""
    return element_nbytes if format == RAW else format_of(format).group_nbytes


@triton.jit
def places_of(flags: tl.tensor) -> tl.tensor:
    """How many flags are set before each one: a value's place among the values of its block."""
    ones = flags.to(tl.int32)
    return tl.cumsum(ones, axis=0) - ones


@triton.jit
def store_values(raw: tl.tensor, values: tl.tensor, at: tl.tensor, wanted: tl.tensor, LAYOUT: tl.constexpr) -> None:
    """The elements that are wanted, in the value format, at these places."""
    if LAYOUT is None:
        tl.store(values + at, raw, mask=wanted)
    else:
        tl.store(values + at, patterns_of(raw, LAYOUT).to(values.dtype.element_ty), mask=wanted)


@triton.jit
def load_values(values: tl.tensor, at: tl.tensor, wanted: tl.tensor, LAYOUT: tl.constexpr) -> tl.tensor:
    """The elements at these places, out of the value format; zero where none is wanted."""
    if LAYOUT is None:
        return tl.load(values + at, mask=wanted, other=0)
    else:
        pattern = pattern_in(tl.load(values + at, mask=wanted, other=0).to(tl.int32), 0, LAYOUT)
        return tl.where(wanted, values_of(pattern, LAYOUT), 0)


@triton.jit
def _count(
    source: tl.tensor,
    bits: tl.tensor,
    sizes: tl.tensor,
    n: tl.int64,
    GROUP: tl.constexpr,
    WORD_NBYTES: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    block = tl.program_id(0).to(tl.int64)
    byte = block * (BLOCK // 8) + tl.arange(0, BLOCK // 8)
    at = byte[:, None] * 8 + tl.arange(0, 8)[None, :]
    flags = tl.load(source + at, mask=at < n, other=0) != 0
    tl.store(bits + byte, packed_bits(flags), mask=byte * 8 < n)
    count = tl.sum(tl.sum(flags.to(tl.int32), axis=1), axis=0)
    tl.store(sizes + block, ((count + GROUP - 1) // GROUP * WORD_NBYTES).to(tl.int64))


@triton.jit
def _compact(
    source: tl.tensor,
    starts: tl.tensor,
    values: tl.tensor,
    n: tl.int64,
    capacity: tl.int64,
    LAYOUT: tl.constexpr,
    GROUP: tl.constexpr,
    WORD_NBYTES: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    block = tl.program_id(0).to(tl.int64)
    first_word = tl.load(starts + block) // WORD_NBYTES
    at = block * BLOCK + tl.arange(0, BLOCK)
    raw = tl.load(source + at, mask=at < n, other=0)
    place = places_of(raw != 0)
    word = first_word + place // GROUP
    wanted = (raw != 0) & (word < capacity)
    if GROUP == 1:
        store_values(raw, values, word, wanted, LAYOUT)
    else:  # three elements share a word: each sets its own bits of it, in whatever order
        tl.atomic_or(values + word, patterns_of(raw, LAYOUT) << (10 * (place % GROUP)), mask=wanted, sem="relaxed")


def sparse_encode(
    source: torch.Tensor,
    element_nbytes: int,
    format: str,
    bits: torch.Tensor,
    starts: torch.Tensor,
    values: torch.Tensor,
    *,
    threads: int | None = None,
) -> torch.Tensor:
    """The elements with any bit set, block by block; returns the bytes they need, as the device has it.

    The values are written before that is known: the kernel stays within the room there is.
    """
    check_sparse(element_nbytes, format)
    layout, width = value_layout(format), word_nbytes(element_nbytes, format)
    raw, words = elements(source, element_nbytes), elements(values, width)
    n, programs, group = raw.numel(), num_programs(raw.numel(), ELEMENTS_PER_BLOCK), layout.group if layout else 1
    shared = {"GROUP": group, "WORD_NBYTES": width, "BLOCK": ELEMENTS_PER_BLOCK, "num_warps": NUM_WARPS}
    sizes = starts[1 : programs + 1]
    starts[:1].zero_()
    launch(_count, programs, raw, bits, sizes, n, **shared)
    sizes.cumsum_(0)
    if group > 1:
        words.zero_()  # bits are set in it, none are cleared
    launch(_compact, programs, raw, starts, words, n, words.numel(), LAYOUT=layout, **shared)
    return starts[programs].clone()


@triton.jit
def _spread(
    bits: tl.tensor,
    starts: tl.tensor,
    values: tl.tensor,
    target: tl.tensor,
    n: tl.int64,
    LAYOUT: tl.constexpr,
    GROUP: tl.constexpr,
    WORD_NBYTES: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    block = tl.program_id(0).to(tl.int64)
    at = block * BLOCK + tl.arange(0, BLOCK)
    wanted = bit_at(bits, at, at < n)
    place = places_of(wanted)
    word = tl.load(starts + block) // WORD_NBYTES + place // GROUP
    if GROUP == 1:
        raw = load_values(values, word, wanted, LAYOUT)
    else:
        pattern = pattern_in(tl.load(values + word, mask=wanted, other=0), place % GROUP, LAYOUT)
        raw = tl.where(wanted, values_of(pattern, LAYOUT), 0)
    tl.store(target + at, raw, mask=at < n)


def sparse_decode(
    bits: torch.Tensor,
    starts: torch.Tensor,
    values: torch.Tensor,
    element_nbytes: int,
    format: str,
    target: torch.Tensor,
    *,
    threads: int | None = None,
) -> None:
    """Values where the bits are set, zeros elsewhere."""
    check_sparse(element_nbytes, format)
    layout, width = value_layout(format), word_nbytes(element_nbytes, format)
    words, raw = elements(values, width), elements(target, element_nbytes)
    n, programs, group = raw.numel(), num_programs(raw.numel(), ELEMENTS_PER_BLOCK), layout.group if layout else 1
    shared = {"GROUP": group, "WORD_NBYTES": width, "BLOCK": ELEMENTS_PER_BLOCK, "num_warps": NUM_WARPS}
    launch(_spread, programs, bits, starts, words, raw, n, LAYOUT=layout, **shared)
