"""When the chosen maps of `offload` leave and return: as late and as early as free memory allows.

Enters: chosen gaps, the bytes of every moment with all of them away, a budget. Leaves: a `CopyWindow` per gap that is
still needed. The one idea: whatever the budget leaves free is lent to maps whose copies are under way. Going forward
through the moments, a map that should be gone may linger until its bytes are wanted, and then the one whose copy out
started first goes first, because it is done first. Going backward, a map may return as soon as its bytes are free from
there on, and when they are not, the one that is used last waits. Both sweeps see one map at a time and cost one pass
each.

A map that may linger until it is used again does not leave at all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import pairwise

import numpy as np

from vdnn.plan.model.gaps import NbytesArray
from vdnn.plan.strategies.offload_choice import GapChoice


@dataclass(frozen=True, slots=True)
class CopyWindow:
    """`choice` leaves after moment `leave` and is fetched before moment `fetch`."""

    choice: GapChoice
    leave: int
    fetch: int


def windows(chosen: Sequence[GapChoice], nbytes_away: NbytesArray, budget_nbytes: int) -> list[CopyWindow]:
    """The widest windows that keep every moment within the budget."""
    leaves = _linger(chosen, nbytes_away, budget_nbytes)
    level = nbytes_away + _residence(
        chosen, {k: (chosen[k].gap.leave, leave) for k, leave in leaves.items()}, nbytes_away
    )
    fetches = _return_early(chosen, leaves, level, budget_nbytes)
    return [CopyWindow(chosen[k], leaves[k], fetches[k]) for k in sorted(fetches)]


def _linger(chosen: Sequence[GapChoice], level: NbytesArray, budget_nbytes: int) -> dict[int, int]:
    """Choice -> the moment after which it leaves. One that never has to leave is not listed."""
    sent = _sent(chosen)
    begins: defaultdict[int, list[int]] = defaultdict(list)
    ends: defaultdict[int, list[int]] = defaultdict(list)
    for k, choice in enumerate(chosen):
        begins[choice.gap.leave + 1].append(k)
        ends[choice.gap.until].append(k)
    leaves: dict[int, int] = {}
    lingering: list[tuple[int, int, int]] = []  # a heap: the copy that started first is done first
    stayed: set[int] = set()
    lent = 0
    for moment, nbytes in enumerate(level.tolist()):
        for k in ends.get(moment, ()):
            if k not in leaves:
                stayed.add(k)
                lent -= chosen[k].gap.nbytes
        for k in begins.get(moment, ()):
            heappush(lingering, (sent[k], chosen[k].gap.leave, k))
            lent += chosen[k].gap.nbytes
        while nbytes + lent > budget_nbytes and lingering:
            k = heappop(lingering)[2]
            if k not in stayed:
                leaves[k] = moment - 1
                lent -= chosen[k].gap.nbytes
    return leaves


def _return_early(
    chosen: Sequence[GapChoice], leaves: dict[int, int], level: NbytesArray, budget_nbytes: int
) -> dict[int, int]:
    """Choice -> the moment before which it is fetched. One that can be there all along is not listed."""
    begins: defaultdict[int, list[int]] = defaultdict(list)
    ends: defaultdict[int, list[int]] = defaultdict(list)
    for k, leave in leaves.items():
        begins[leave].append(k)
        ends[chosen[k].gap.until - 1].append(k)
    fetches: dict[int, int] = {}
    early: list[tuple[int, int]] = []  # a heap: what is used last can wait longest
    stayed: set[int] = set()
    lent = 0
    for moment in range(len(level) - 1, -1, -1):
        for k in begins.get(moment, ()):
            if k not in fetches:
                stayed.add(k)
                lent -= chosen[k].gap.nbytes
        for k in ends.get(moment, ()):
            heappush(early, (-chosen[k].gap.until, k))
            lent += chosen[k].gap.nbytes
        while int(level[moment]) + lent > budget_nbytes and early:
            k = heappop(early)[1]
            if k not in stayed:
                fetches[k] = moment + 1
                lent -= chosen[k].gap.nbytes
    return fetches


def _sent(chosen: Sequence[GapChoice]) -> list[int]:
    """Where each copy out starts: once the content is final, or when the storage is back from the gap before."""
    by_storage: defaultdict[int, list[int]] = defaultdict(list)
    for k, choice in enumerate(chosen):
        by_storage[choice.gap.storage].append(k)
    sent = [choice.gap.final for choice in chosen]
    for group in by_storage.values():
        group.sort(key=lambda k: chosen[k].gap.leave)
        for before, k in pairwise(group):
            sent[k] = max(sent[k], chosen[before].gap.until)
    return sent


def _residence(chosen: Sequence[GapChoice], stays: dict[int, tuple[int, int]], like: NbytesArray) -> NbytesArray:
    """Bytes of every moment of maps that stay on after one moment and through another."""
    change = np.zeros(len(like) + 1, dtype=np.int64)
    for k, choice in enumerate(chosen):
        first, last = stays.get(k, (choice.gap.leave, choice.gap.until - 1))  # not listed: it stays all along
        change[first + 1] += choice.gap.nbytes
        change[last + 1] -= choice.gap.nbytes
    return change.cumsum()[:-1]
