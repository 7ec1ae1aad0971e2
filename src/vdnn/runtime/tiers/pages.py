"""How the bytes of a tensor fall on whole pages of a file, so that most of them need no staging.

Enters: an address, a size, a page size. Leaves: a `PageRun`. Direct I/O moves whole pages from and to page-aligned
memory, and tensors are 64-byte aligned. The one idea: the tensor's first byte goes into the file at the same distance
from a page boundary that it has in memory (its phase). Then every page that lies wholly inside the tensor moves
straight between memory and file, and only the first and the last, shared with neighbours, are staged.

    memory   ....|..head|interior|interior|interior|tail...|
    file         |..head|interior|interior|interior|tail   |      phase = length of the dots before the head

Without direct I/O the page is one byte, every phase is 0 and all is interior.
"""

from __future__ import annotations

from dataclasses import dataclass

from vdnn.runtime.tiers.raw_memory import round_up


@dataclass(frozen=True, slots=True)
class PageRun:
    """`nbytes` that begin `phase` bytes into a run of whole pages. Positions count from the begin of that run."""

    phase: int
    nbytes: int
    page_nbytes: int

    @classmethod
    def of(cls, address: int, nbytes: int, page_nbytes: int) -> PageRun:
        return cls(address % page_nbytes, nbytes, page_nbytes)

    @property
    def end(self) -> int:
        return self.phase + self.nbytes

    @property
    def padded_nbytes(self) -> int:
        return round_up(self.end, self.page_nbytes)

    @property
    def interior_begin(self) -> int:
        return min(round_up(self.phase, self.page_nbytes), self.padded_nbytes)

    @property
    def interior_end(self) -> int:
        return max(self.end // self.page_nbytes * self.page_nbytes, self.interior_begin)

    def clip(self, begin: int, end: int) -> tuple[int, int]:
        """The part of [begin, end) that is the tensor's, as (position, size)."""
        low, high = max(begin, self.phase), min(end, self.end)
        return low, max(0, high - low)
