"""Sparse data as CSR in Triton: csr_encode, csr_decode. reference_sparse.py defines them.

Enters: raw four-byte elements, or the parts of an encoding, flat tensors on one accelerator. Leaves: how many values
there are; results go into the tensors that were handed in. The one idea is the mask form's, with rows in the place of
blocks: count, sum up, move. A row is short, so a program has several side by side.
"""

# Constants of a kernel are in capitals, as in Triton's own.
# ruff: noqa: N803

from __future__ import annotations

import torch
import triton
import triton.language as tl

from vdnn.codecs.kernels.reference_sparse import check_row_offsets
from vdnn.codecs.kernels.sparse_layout import CSR_FORMATS, ROW, require_format
from vdnn.codecs.kernels.triton_launch import elements, launch, num_programs
from vdnn.codecs.kernels.triton_sparse import load_values, store_values, value_layout, word_nbytes

ROWS = 8  # rows per program: 2048 elements, sixteen for each of the 128 threads


@triton.jit
def row_begin(rows: tl.tensor, row: tl.tensor, inside: tl.tensor) -> tl.tensor:
    """Where a row's values begin. Written in 32 bits without a sign, read in 32 bits with one."""
    return tl.load(rows + row, mask=inside, other=0).to(tl.int64) & 0xFFFFFFFF


@triton.jit
def _count(source: tl.tensor, counts: tl.tensor, n: tl.int64, ROW: tl.constexpr, ROWS: tl.constexpr) -> None:
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    at = row[:, None] * ROW + tl.arange(0, ROW)[None, :]
    flags = tl.load(source + at, mask=at < n, other=0) != 0
    tl.store(counts + row, tl.sum(flags.to(tl.int32), axis=1), mask=row * ROW < n)


@triton.jit
def _compact(
    source: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    values: tl.tensor,
    n: tl.int64,
    capacity: tl.int64,
    LAYOUT: tl.constexpr,
    ROW: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, ROW)[None, :]
    at = row[:, None] * ROW + column
    raw = tl.load(source + at, mask=at < n, other=0)
    ones = (raw != 0).to(tl.int32)
    place = row_begin(rows, row, row * ROW < n)[:, None] + tl.cumsum(ones, axis=1) - ones
    wanted = (raw != 0) & (place < capacity)
    tl.store(columns + place, tl.broadcast_to(column, at.shape).to(tl.uint8), mask=wanted)
    store_values(raw, values, place, wanted, LAYOUT)


def csr_encode(
    source: torch.Tensor,
    format: str,
    rows: torch.Tensor,
    columns: torch.Tensor,
    values: torch.Tensor,
    *,
    threads: int | None = None,
) -> torch.Tensor:
    """The four-byte elements with any bit set, with their columns; returns how many, as the device has it.

    The values are written before that is known: the kernel stays within the room there is.
    """
    require_format(format, CSR_FORMATS, "the CSR form")
    raw, begins, words = elements(source, 4), rows.view(torch.int32), elements(values, word_nbytes(4, format))
    n, num_rows = raw.numel(), num_programs(raw.numel(), ROW)
    check_row_offsets(n)
    counts, programs = begins[1 : num_rows + 1], num_programs(num_rows, ROWS)
    capacity = min(columns.numel(), words.numel())
    begins[:1].zero_()
    launch(_count, programs, raw, counts, n, ROW=ROW, ROWS=ROWS)
    counts.cumsum_(0)  # wraps into the sign, which row_begin takes back
    arguments = raw, begins, columns, words, n, capacity
    launch(_compact, programs, *arguments, LAYOUT=value_layout(format), ROW=ROW, ROWS=ROWS)
    return begins[num_rows].to(torch.int64) & 0xFFFFFFFF


@triton.jit
def _spread(
    rows: tl.tensor,
    columns: tl.tensor,
    values: tl.tensor,
    target: tl.tensor,
    n: tl.int64,
    LAYOUT: tl.constexpr,
    ROW: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    is_row = row * ROW < n
    begin = row_begin(rows, row, is_row)[:, None]
    end = row_begin(rows, row + 1, is_row)[:, None]
    place = begin + tl.arange(0, ROW)[None, :]
    wanted = place < end
    column = tl.load(columns + place, mask=wanted, other=0)
    at = row[:, None] * ROW + column
    tl.store(target + at, load_values(values, place, wanted, LAYOUT), mask=wanted & (at < n))


def csr_decode(
    rows: torch.Tensor,
    columns: torch.Tensor,
    values: torch.Tensor,
    format: str,
    target: torch.Tensor,
    *,
    threads: int | None = None,
) -> None:
    """Values at their columns, zeros elsewhere."""
    require_format(format, CSR_FORMATS, "the CSR form")
    raw, words = elements(target, 4), elements(values, word_nbytes(4, format))
    n, programs = raw.numel(), num_programs(num_programs(raw.numel(), ROW), ROWS)
    raw.zero_()
    arguments = rows.view(torch.int32), columns, words, raw, n
    launch(_spread, programs, *arguments, LAYOUT=value_layout(format), ROW=ROW, ROWS=ROWS)
