"""Places for all blocks of an iteration that was seen.

Enters: the log of an iteration. Leaves: a `PlannedIteration`: for every half the slots that its blocks take. Pages that
can be moved are packed so (`plan_iteration`); `device_memory.py` has the same for blocks that stay whole.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from vdnn.plan.addresses.layout import TimedBlock
from vdnn.plan.addresses.pack import pack
from vdnn.runtime.step_memory.allocator import Kind, LoggedBlock, Slots


class Between(NamedTuple):
    """The key of what runs after a forward, up to the half that comes next."""

    forward: Hashable


@dataclass(frozen=True, eq=False)
class PlannedIteration:
    """The halves of one iteration by key, and the slots of each, in an arena of `arena_nbytes` of which `peak_nbytes`
    are alive at most."""

    keys: tuple[Hashable, ...]
    slots: tuple[Slots, ...]
    kept: frozenset[tuple[int, int]]
    arena_nbytes: int
    peak_nbytes: int
    num_relearned: int = 0


def plan_iteration(
    keys: tuple[Hashable, ...],
    log: Sequence[LoggedBlock],
    kept_before: frozenset[tuple[int, int]] = frozenset(),
    num_relearned: int = 0,
) -> PlannedIteration:
    """Places for all blocks of an iteration that was recorded. A block that the caller still holds when the next
    iteration begins is kept; what was kept once stays so. Blocks are named by their half and their rank in it."""
    names = names_of(log)
    kept = kept_before | {name for name, block in zip(names, log, strict=True) if block.is_held and block.end < 0}
    end = 1 + max((max(block.begin, block.end) for block in log), default=0)
    timed = [
        TimedBlock(block.nbytes, block.begin, end if _may_last(block, keys) else block.end)
        for name, block in zip(names, log, strict=True)
        if name not in kept
    ]
    layout = pack(timed)
    places = iter(layout.places)
    slots: list[list[tuple[int, ...]]] = [[] for _ in keys]
    extents: list[list[tuple[int, int]]] = [[] for _ in keys]
    for name, block in zip(names, log, strict=True):
        place = () if name in kept else next(places)
        kind = Kind.KEPT if name in kept else Kind.MOVED if block.is_held or len(place) > 1 else Kind.IN_PLACE
        slots[block.half].append((block.nbytes, kind, block.is_held, len(extents[block.half]), len(place)))
        extents[block.half] += [(extent.begin, extent.nbytes) for extent in place]
    halves = tuple(Slots(numbers(s, 5), numbers(e, 2)) for s, e in zip(slots, extents, strict=True))
    return PlannedIteration(keys, halves, kept, layout.arena_nbytes, layout.peak_nbytes, num_relearned)


def _may_last(block: LoggedBlock, keys: tuple[Hashable, ...]) -> bool:
    """Whether its place is its own up to the end of the iteration: nobody has freed it, or its caller may free it later
    the next time. What a loss outside takes comes and goes as in a half."""
    return block.end < 0 or (bool(block.is_held) and not isinstance(keys[block.half], Between))


def names_of(log: Sequence[LoggedBlock]) -> list[tuple[int, int]]:
    """Of every block the half it is of, and how many that half asked for before it."""
    seen: dict[int, int] = {}
    names = []
    for block in log:
        names.append((block.half, seen.get(block.half, 0)))
        seen[block.half] = names[-1][1] + 1
    return names


def numbers(rows: Sequence[Sequence[int]], width: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.ascontiguousarray(np.array(rows, dtype=np.int64).reshape(-1, width))
