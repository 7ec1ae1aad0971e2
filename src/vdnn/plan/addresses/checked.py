"""The independent look at a layout: every pair of blocks that is alive at once and shares a byte.

Written the slow, obvious way, without anything of `pack.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

from vdnn.plan.addresses.layout import PAGE_NBYTES, Layout, TimedBlock


def collisions(blocks: Sequence[TimedBlock], layout: Layout) -> list[str]:
    """What is wrong with a layout, in words; empty for one that holds."""
    return [*_misplaced(blocks, layout), *_shared(blocks, layout)]


def _misplaced(blocks: Sequence[TimedBlock], layout: Layout) -> Iterator[str]:
    for k, (block, place) in enumerate(zip(blocks, layout.places, strict=True)):
        has_nbytes = sum(extent.nbytes for extent in place)
        if not block.nbytes <= has_nbytes < block.nbytes + PAGE_NBYTES:
            yield f"block {k} of {block.nbytes} bytes has {has_nbytes}"
        for extent in place:
            if extent.begin < 0 or extent.end > layout.arena_nbytes:
                yield f"block {k} lies at {extent}, outside of an arena of {layout.arena_nbytes}"
            if extent.begin % PAGE_NBYTES or extent.end % PAGE_NBYTES or extent.begin >= extent.end:
                yield f"block {k} lies at {extent}, which is not whole pages"


def _shared(blocks: Sequence[TimedBlock], layout: Layout) -> Iterator[str]:
    extents = [(k, extent) for k, place in enumerate(layout.places) for extent in place]
    for (one, here), (other, there) in combinations(extents, 2):
        alive_at_once = blocks[one].begin < blocks[other].end and blocks[other].begin < blocks[one].end
        shares_a_byte = here.begin < there.end and there.begin < here.end
        if shares_a_byte and (alive_at_once or one == other):
            yield f"blocks {one} and {other} are alive at once, at {here} and {there}"
