"""What the integer program of `integer_program.py` is written from, and what it believes of memory.

Enters: candidates and their units. Leaves: tables that every program of one problem shares, and the bytes of every
moment under a choice per item, as the program sees them. What it does not see (the moment at which an encoder holds
both forms) the simulator sees, and what the simulator says comes back as `Learned`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from vdnn.plan.auto.candidates import Candidates, GapOptions, Option
from vdnn.plan.auto.demands import Demand, demands, recompute_positions, source_items
from vdnn.plan.auto.ties import Unit
from vdnn.plan.model.gaps import NbytesArray


class ProgramData:
    """The tables that every solve of one set of candidates shares."""

    def __init__(self, candidates: Candidates, units: Sequence[Unit]) -> None:
        self.candidates, self.units, self.items = candidates, units, candidates.items
        self.unit_of = {k: u for u, members in enumerate(units) for k in members}
        self.sources = {
            k: [j for j in sources if j in self.unit_of]
            for k, sources in source_items(candidates).items()
            if k in self.unit_of
        }
        self.demands = demands(candidates, self.sources)
        self.recompute = [recompute_positions(item) for item in self.items]
        self.fresh = _fresh_nbytes(candidates)
        gaps = [item.gap for item in self.items]
        self.leave = np.array([gap.leave for gap in gaps], dtype=np.int64)
        self.until = np.array([gap.until for gap in gaps], dtype=np.int64)
        ends = [max(option.end(item.gap) for option in item.options) for item in self.items]
        self.end = np.array(ends, dtype=np.int64)  # of the longest option

    def nbytes_of(self, choices: Sequence[int]) -> NbytesArray:
        """Bytes of every moment under a choice per item, as the program sees them."""
        change = np.zeros(len(self.candidates.graph) + 1, dtype=np.int64)
        passing = np.zeros(len(self.candidates.graph), dtype=np.int64)
        for k, chosen in enumerate(choices):
            if chosen:
                item, option = self.items[k], self.items[k].options[chosen - 1]
                change[item.gap.leave + 1] -= item.gap.nbytes
                end = option.end(item.gap) if option.back >= 0 else self._earliest(k, choices)
                change[end] += item.gap.nbytes
                change[item.gap.leave] += option.held_nbytes
                change[min(option.end(item.gap) + 1, len(passing))] -= option.held_nbytes
                passing[item.gap.until] = max(passing[item.gap.until], self.passing_nbytes(item, option))
        level: NbytesArray = self.candidates.base + change.cumsum()[:-1] + passing
        return level

    def _earliest(self, k: int, choices: Sequence[int]) -> int:
        """Where an item that is given up has to be back: at its next use, or where a recomputation asks for it."""
        asked = [d.moment for d in self.demands.get(k, ()) if self._is_asked(d, choices)]
        return min([self.items[k].gap.until, *asked])

    def _is_asked(self, demand: Demand, choices: Sequence[int]) -> bool:
        chain = {demand.asker, demand.for_item}
        return all(choices[j] in self.recompute[j] for j in chain)

    def passing_nbytes(self, item: GapOptions, option: Option) -> int:
        """What a replay holds beyond what its moment will hold anyway when its own op runs."""
        return max(0, option.passing_nbytes - int(self.fresh[item.gap.until]))


def _fresh_nbytes(candidates: Candidates) -> NbytesArray:
    """Bytes that begin at each moment: its op's results and workspace."""
    fresh = np.array([cost.workspace_nbytes for cost in candidates.lean.costs.ops], dtype=np.int64)
    for storage, life in zip(candidates.graph.storages, candidates.graph.lifetimes, strict=True):
        if life is not None:
            fresh[life.begin] += storage.nbytes
    return fresh


def margins(believed: NbytesArray, found: NbytesArray, budget_nbytes: int) -> Mapping[int, int]:
    """Of each moment over the budget: what it needs beyond what was believed."""
    over = np.flatnonzero(found > budget_nbytes)
    return {int(moment): int(found[moment] - believed[moment]) for moment in over}
