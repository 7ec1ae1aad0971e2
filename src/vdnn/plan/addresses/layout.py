"""Blocks with lifetimes, and where each of them lies.

A block is so many bytes from one time to another; a layout gives each a place in an arena. Times are whatever counts
up: instructions of a plan, or allocations and releases as they were seen.

The one idea: **an address is not a page**. A block is one run of addresses, and the pages behind it may come from
several extents of the arena (GMLake, ASPLOS 2024, stitches GPU memory so; the CPU's page tables do it too). So an arena
need not be larger than what is alive at once, whatever the lifetimes are, as long as sizes are whole pages.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from vdnn.plan.addresses.extents import Extent

PAGE_NBYTES = 4096
"""What the system maps at least. A device with larger pages has a layout with those."""

SMALLEST_NBYTES = 4 * PAGE_NBYTES
"""Blocks below this have no place in the arena: whole pages would waste more than a quarter of them, and malloc serves
them from the memory that the interpreter has anyway."""


class TimedBlock(NamedTuple):
    """`nbytes` bytes, alive at every time t with `begin <= t < end`."""

    nbytes: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Layout:
    """`places[k]` are the extents of block k, in the order of its addresses, inside an arena of `arena_nbytes`.
    `peak_nbytes` is what is alive at most: no arena is smaller."""

    places: tuple[tuple[Extent, ...], ...]
    arena_nbytes: int
    peak_nbytes: int

    @property
    def waste(self) -> float:
        """The arena over what is alive at most; 1 is the best there is."""
        return self.arena_nbytes / self.peak_nbytes if self.peak_nbytes else 1.0

    @property
    def stitched_nbytes(self) -> int:
        """Bytes of the blocks whose pages come from several extents."""
        return sum(extent.nbytes for place in self.places if len(place) > 1 for extent in place)


def whole_pages(nbytes: int) -> int:
    return -(-nbytes // PAGE_NBYTES) * PAGE_NBYTES


def peak_of(blocks: Iterable[TimedBlock]) -> int:
    """The most bytes that are alive at once."""
    changes = [change for block in blocks for change in ((block.begin, 1, block.nbytes), (block.end, 0, -block.nbytes))]
    alive = peak = 0
    for _, _, nbytes in sorted(changes):  # at one time, what ends goes before what begins
        alive += nbytes
        peak = max(peak, alive)
    return peak
