"""Which bytes of a long row are taken: allocate, release, coalesce. Pure bookkeeping; nothing here touches memory.

Enters: sizes. Leaves: `Extent`s, disjoint ranges of [0, capacity). The one idea: what is stored **need not lie in one
piece**: in a slower tier because it is only ever written whole and read whole, in an arena because pages of several
extents can stand behind one run of addresses. The smallest hole that holds it is taken; when there is none, several
holes are. A row is therefore full when its free bytes do not suffice, never because they are scattered, and a plan that
counts bytes is a plan that fits.

Holes are kept sorted by size, and found by their two ends when a neighbour is released: every call is a binary search
and a shift in a sorted list, microseconds at 10⁴ holes. Not safe for threads; `runtime/tiers/ledger.py` is.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

UNBOUNDED_NBYTES = 2**62  # more than any file system or address space holds


@dataclass(frozen=True, slots=True)
class Extent:
    """Bytes of the row, half-open: begin <= byte < end."""

    begin: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.begin < self.end:
            raise ValueError(f"extent is empty or negative: begin={self.begin}, end={self.end}")

    @property
    def nbytes(self) -> int:
        return self.end - self.begin


class Extents:
    """Taken and free ranges of [0, capacity). Two free ranges never touch: they would be one."""

    def __init__(self, capacity_nbytes: int) -> None:
        self.capacity_nbytes = 0
        self.free_nbytes = 0
        self._by_size: list[tuple[int, int]] = []  # (size, begin) of every hole, ascending
        self._end_of: dict[int, int] = {}  # begin of a hole -> its end
        self._begin_of: dict[int, int] = {}  # end of a hole -> its begin
        self._taken: dict[int, int] = {}  # begin of a taken range -> its end
        self.grow(capacity_nbytes)

    @property
    def num_holes(self) -> int:
        return len(self._by_size)

    @property
    def largest_hole_nbytes(self) -> int:
        return self._by_size[-1][0] if self._by_size else 0

    @property
    def free_at_end_nbytes(self) -> int:
        """The hole that the row ends with."""
        return self.capacity_nbytes - self._begin_of.get(self.capacity_nbytes, self.capacity_nbytes)

    def allocate(self, nbytes: int) -> tuple[Extent, ...] | None:
        """Ranges of `nbytes` in total, one where some hole is large enough; None when the free bytes do not suffice."""
        if nbytes > self.free_nbytes:
            return None
        pieces = []
        while nbytes:
            best = bisect_left(self._by_size, (nbytes, 0))
            size, begin = self._by_size[min(best, len(self._by_size) - 1)]
            piece = Extent(begin, begin + min(size, nbytes))
            self._take(piece)
            pieces.append(piece)
            nbytes -= piece.nbytes
        return tuple(pieces)

    def release(self, extent: Extent) -> None:
        """Give a range back that `allocate` returned; it joins its free neighbours."""
        assert self._taken.get(extent.begin) == extent.end, f"{extent} is not taken"
        del self._taken[extent.begin]
        self._add_hole(extent.begin, extent.end)

    def grow(self, nbytes: int) -> None:
        """Make the row longer by `nbytes` free ones."""
        if nbytes > 0:
            self._add_hole(self.capacity_nbytes, self.capacity_nbytes + nbytes)
            self.capacity_nbytes += nbytes

    def _take(self, piece: Extent) -> None:
        hole_end = self._end_of[piece.begin]
        self._remove_hole(piece.begin, hole_end)
        if piece.end < hole_end:
            self._add_hole(piece.end, hole_end)
        self._taken[piece.begin] = piece.end

    def _add_hole(self, begin: int, end: int) -> None:
        """Insert a hole, joined with the holes that end or begin where it begins or ends."""
        self.free_nbytes += end - begin
        if begin in self._begin_of:
            before, middle = self._begin_of[begin], begin
            self._forget(before, middle)
            begin = before
        if end in self._end_of:
            middle, after = end, self._end_of[end]
            self._forget(middle, after)
            end = after
        self._end_of[begin], self._begin_of[end] = end, begin
        insort(self._by_size, (end - begin, begin))

    def _remove_hole(self, begin: int, end: int) -> None:
        self.free_nbytes -= end - begin
        self._forget(begin, end)

    def _forget(self, begin: int, end: int) -> None:
        del self._end_of[begin], self._begin_of[end]
        del self._by_size[bisect_left(self._by_size, (end - begin, begin))]
