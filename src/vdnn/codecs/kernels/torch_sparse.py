"""Sparse data in torch ops: sparse_encode, sparse_decode, csr_encode, csr_decode. reference_sparse.py defines them.

Enters: raw elements, or the parts of an encoding, flat tensors on any device. Leaves: how much room the values need, as
a tensor of one number on that device; results go into the tensors that were handed in. The one idea: how many values
there are is not known on the host, so nothing has that size. Every element has a place, the number of values before
it; a value is added at its place, and a zero adds nothing to whatever is there. What has no room adds nothing either.
"""

from __future__ import annotations

import torch

from vdnn.codecs.kernels.formats import format_of
from vdnn.codecs.kernels.reference_masks import of_bits
from vdnn.codecs.kernels.reference_sparse import check_row_offsets, check_sparse
from vdnn.codecs.kernels.sparse_layout import CSR_FORMATS, ELEMENTS_PER_BLOCK, RAW, ROW, require_format
from vdnn.codecs.kernels.torch_chunks import elements, in_chunks, in_rows
from vdnn.codecs.kernels.torch_floats import pattern_in, patterns_of, values_of
from vdnn.codecs.kernels.torch_masks import packed, unpacked

_LANE_BITS = 10


def word_nbytes(element_nbytes: int, format: str) -> int:
    """What a value is written as: itself, its pattern, or a word of three patterns."""
    return element_nbytes if format == RAW else format_of(format).group_nbytes


def values_per_word(format: str) -> int:
    return 1 if format == RAW else format_of(format).values_per_group


def runs_of(chunk: slice, size: int) -> slice:
    """The blocks, or rows, of these elements; a chunk begins with a whole one."""
    return slice(chunk.start // size, -(-chunk.stop // size))


def places_of(flags: torch.Tensor) -> torch.Tensor:
    """[rows, size]: how many flags of a row are set before each one."""
    return flags.cumsum(1).sub_(flags.view(torch.uint8))


def add_at(words: torch.Tensor, place: torch.Tensor, values: torch.Tensor) -> None:
    """Add each value to the word at its place; what lies past the end adds nothing. `place` is used up."""
    values = values.masked_fill(place >= words.numel(), 0)
    words.scatter_add_(0, place.clamp_(max=words.numel() - 1).view(-1), values.to(words.dtype).view(-1))


def take_at(words: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    """The word at each place, or any where that is past the end. `place` is used up."""
    return words.index_select(0, place.clamp_(0, words.numel() - 1).view(-1)).view(place.shape)


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
    """The elements with any bit set, block by block; returns the bytes they need."""
    check_sparse(element_nbytes, format)
    width, group = word_nbytes(element_nbytes, format), values_per_word(format)
    raw, words = elements(source, element_nbytes), elements(values, width)
    words.zero_()
    starts[:1].zero_()
    for chunk in in_chunks(raw.numel()):
        blocks = runs_of(chunk, ELEMENTS_PER_BLOCK)
        block = in_rows(raw[chunk], ELEMENTS_PER_BLOCK)
        flags = block != 0
        bits[of_bits(chunk)] = packed(flags.view(-1)[: chunk.stop - chunk.start])
        sizes = (flags.sum(1) + (group - 1)).div_(group, rounding_mode="floor").mul_(width)
        starts[blocks.start + 1 : blocks.stop + 1] = sizes.cumsum_(0).add_(starts[blocks.start])
        if words.numel():
            move_values(block, flags, starts[blocks] // width, format, words)
    return starts[-(-raw.numel() // ELEMENTS_PER_BLOCK)].clone()


def move_values(
    block: torch.Tensor, flags: torch.Tensor, first_word: torch.Tensor, format: str, words: torch.Tensor
) -> None:
    """The values of some blocks, or rows, to where those of each begin."""
    place = places_of(flags)
    coded = block if format == RAW else patterns_of(block, format_of(format)).masked_fill_(flags.logical_not(), 0)
    group = values_per_word(format)
    if group > 1:  # three elements share a word: each adds its own bits to it
        coded = coded << (place % group).mul_(_LANE_BITS).to(coded.dtype)
        place.div_(group, rounding_mode="floor")
    add_at(words, place.add_(first_word[:, None]), coded)


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
    width, group = word_nbytes(element_nbytes, format), values_per_word(format)
    words, raw = elements(values, width), elements(target, element_nbytes)
    if not words.numel():
        raw.zero_()
        return
    for chunk in in_chunks(raw.numel()):
        flags = in_rows(unpacked(bits, chunk), ELEMENTS_PER_BLOCK)
        place = places_of(flags)
        shift = (place % group).mul_(_LANE_BITS).to(torch.int32) if group > 1 else None
        if group > 1:
            place.div_(group, rounding_mode="floor")
        place.add_((starts[runs_of(chunk, ELEMENTS_PER_BLOCK)] // width)[:, None])
        found = take_at(words, place)
        found = found if shift is None else found >> shift
        found = plain(found, format).masked_fill_(flags.logical_not_(), 0)
        raw[chunk] = found.view(-1)[: chunk.stop - chunk.start]


def plain(found: torch.Tensor, format: str) -> torch.Tensor:
    """Words out of an encoding as the bits of elements."""
    if format == RAW:
        return found
    return values_of(pattern_in(found.to(torch.int32), format_of(format)), format_of(format))


def csr_encode(
    source: torch.Tensor,
    format: str,
    rows: torch.Tensor,
    columns: torch.Tensor,
    values: torch.Tensor,
    *,
    threads: int | None = None,
) -> torch.Tensor:
    """The four-byte elements with any bit set, with their columns; returns how many there are."""
    require_format(format, CSR_FORMATS, "the CSR form")
    raw, begins, words = elements(source, 4), rows.view(torch.int32), elements(values, word_nbytes(4, format))
    check_row_offsets(raw.numel())
    capacity = min(columns.numel(), words.numel())
    columns, words = columns[:capacity].zero_(), words[:capacity].zero_()
    begins[:1].zero_()
    column = torch.arange(ROW, dtype=torch.uint8, device=source.device)
    for chunk in in_chunks(raw.numel()):
        row = in_rows(raw[chunk], ROW)
        flags, mine = row != 0, runs_of(chunk, ROW)
        ends = flags.sum(1).cumsum_(0).add_(begins[mine.start])
        begins[mine.start + 1 : mine.stop + 1] = ends  # wraps into the sign, which `unsigned` takes back
        if capacity:
            move_values(row, flags, unsigned(begins[mine]), format, words)
            place = places_of(flags).add_(unsigned(begins[mine])[:, None])
            add_at(columns, place, flags.view(torch.uint8) * column)
    return unsigned(begins[-(-raw.numel() // ROW)])


def unsigned(begins: torch.Tensor) -> torch.Tensor:
    """Row offsets are written in 32 bits without a sign, and read in 32 bits with one."""
    return begins.to(torch.int64).bitwise_and_(0xFFFFFFFF)


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
    raw, begins, words = elements(target, 4), rows.view(torch.int32), elements(values, word_nbytes(4, format))
    raw.zero_()
    if not words.numel() or not columns.numel():
        return
    lane = torch.arange(ROW, device=target.device)
    for chunk in in_chunks(raw.numel()):
        mine = runs_of(chunk, ROW)
        offsets = unsigned(begins[mine.start : mine.stop + 1])
        place = offsets[:-1, None] + lane  # a row's values lie side by side, and it has as many at most
        is_none = place >= offsets[1:, None]
        found = plain(take_at(words, place), format).masked_fill_(is_none, 0)
        column = take_at(columns, place).masked_fill_(is_none, 0).to(torch.int64)
        whole = torch.zeros_like(found).scatter_add_(1, column, found)
        raw[chunk] = whole.view(-1)[: chunk.stop - chunk.start]
