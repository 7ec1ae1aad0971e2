"""Whole blocks put down from below to above, inside of a height that is given.

Enters: blocks with lifetimes, and a height. Leaves: an offset of each within it, or none. The one idea is that of
MiniMalloc (ASPLOS 2023): **blocks are put down in order of their offsets**, each directly on one that is there. Then
nothing ever comes to lie below the block put down last, so that whatever is empty below it is lost, and a time at which
the rest no longer fits above shows early; then the last block is taken up again, and another one tried.

A block that is to lie directly above another one comes once that is there, and if nothing lies between them.

Which block is tried first decides how long that takes, and a search that began badly does not end. So it is cut short,
and begun again in another order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from vdnn.plan.addresses.layout import TimedBlock

Column = npt.NDArray[np.int64]

NOWHERE = -1


class Undone(NamedTuple):
    """What there was before block `k` was put down."""

    k: int
    floor: Column
    lowest: Column


class Upwards:
    """The blocks in the order in which they are tried, over the stretches of time between two begins."""

    def __init__(self, blocks: Sequence[TimedBlock], order: Sequence[int], below: Mapping[int, int]) -> None:
        self.order = np.array(order, dtype=np.int64)
        self.nbytes, begins, ends = np.array(blocks, dtype=np.int64)[self.order].T
        stretches = np.unique(begins)
        self.begins, self.ends = np.searchsorted(stretches, begins), np.searchsorted(stretches, ends)
        at = np.arange(len(stretches))
        covers = (self.begins[:, None] <= at) & (at < self.ends[:, None])
        self.beside = (self.begins[:, None] < self.ends) & (self.begins < self.ends[:, None])
        self.waiting_nbytes = (covers * self.nbytes[:, None]).sum(axis=0)  # of a stretch: of blocks not put down yet
        self.floor = np.zeros(len(stretches), dtype=np.int64)
        self.lowest = np.zeros(len(order), dtype=np.int64)  # of a block: where it would come to lie now
        self.is_waiting = np.ones(len(order), dtype=np.bool_)
        self.offsets = np.full(len(order), NOWHERE, dtype=np.int64)
        at_of = {block: at for at, block in enumerate(order)}
        self.uppers = np.array([at_of[upper] for upper in below], dtype=np.int64)
        self.lowers = np.array([at_of[lower] for lower in below.values()], dtype=np.int64)
        self.num_tried = 0

    def packed(self, height_nbytes: int, most_tried: int) -> Column | None:
        """An offset of each block, as they were given; None where `most_tried` blocks were put down before that."""
        path: list[tuple[Iterator[int], Undone | None]] = [(self._next(height_nbytes, 0, NOWHERE), None)]
        while path and self.num_tried < most_tried:
            tries, undone = path[-1]
            k = next(tries, None)
            if k is None:
                path.pop()
                if undone is not None:
                    self._take_up(undone)
                continue
            undone = self._put_down(k)
            if not self.is_waiting.any():
                found = np.empty_like(self.offsets)
                found[self.order] = self.offsets
                return found
            path.append((self._next(height_nbytes, int(self.offsets[k]), k), undone))
        return None

    def _next(self, height_nbytes: int, offset: int, last: int) -> Iterator[int]:
        """Which blocks may come after the last one, the lowest first: none where the rest does not fit any more. A
        block below which another has room waits for that one."""
        can_come = self._with_their_lower()
        if can_come is None:
            return iter(())
        tops = (np.maximum(self.lowest, offset) + self.nbytes)[self.is_waiting]
        has_waiting = self.waiting_nbytes > 0
        levels = np.where(has_waiting, np.maximum(self.floor, offset) + self.waiting_nbytes, 0)
        if max(int(tops.max()), int(levels.max())) > height_nbytes:
            return iter(())
        least = (np.maximum(self.lowest, offset) + self.nbytes)[can_come].min(initial=height_nbytes)
        is_next = can_come & (self.lowest < least) & (self.lowest >= offset)
        is_next[: last + 1] &= self.lowest[: last + 1] > offset  # those of one offset come in one order
        found = np.flatnonzero(is_next)
        return iter(found[np.argsort(self.lowest[found], kind="stable")].tolist())

    def _with_their_lower(self) -> npt.NDArray[np.bool_] | None:
        """What waits, but for those whose lower one does too; None where something lies between two that touch."""
        if not len(self.uppers):
            return self.is_waiting
        there = ~self.is_waiting[self.lowers] & self.is_waiting[self.uppers]
        uppers, lowers = self.uppers[there], self.lowers[there]
        if (self.lowest[uppers] != self.offsets[lowers] + self.nbytes[lowers]).any():
            return None
        can_come = self.is_waiting.copy()
        can_come[self.uppers[self.is_waiting[self.lowers]]] = False
        return can_come

    def _put_down(self, k: int) -> Undone:
        self.num_tried += 1
        life = slice(self.begins[k], self.ends[k])
        undone = Undone(k, self.floor[life].copy(), self.lowest.copy())
        self.offsets[k], self.is_waiting[k] = self.lowest[k], False
        self.floor[life] = self.lowest[k] + self.nbytes[k]
        self.waiting_nbytes[life] -= self.nbytes[k]
        others = self.beside[k] & self.is_waiting
        self.lowest[others] = np.maximum(self.lowest[others], self.lowest[k] + self.nbytes[k])
        return undone

    def _take_up(self, undone: Undone) -> None:
        k, life = undone.k, slice(self.begins[undone.k], self.ends[undone.k])
        self.offsets[k], self.is_waiting[k] = NOWHERE, True
        self.floor[life], self.lowest = undone.floor, undone.lowest
        self.waiting_nbytes[life] += self.nbytes[k]
