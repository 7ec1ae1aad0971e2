"""No plan within a budget is faster than this.

Enters: `Candidates`, a budget and a moment. Leaves: seconds. The one idea: whatever a plan does elsewhere, at that one
moment it must be rid of what is over the budget, and each way of being rid of bytes has a least price. Made again, a
storage takes at least the ops that write it; encoded, its codec; moved, it passes the link out before the moment and
the link back after it, at the same time as compute if all goes well. Of all mixtures the cheapest is taken, storages
cut as if they were liquid, so nothing is asked of a plan that a plan could do without.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cached_property

import numpy as np
import numpy.typing as npt

from vdnn.plan.auto.candidates import ENCODE, ENCODE_OFFLOAD, Candidates, GapOptions
from vdnn.plan.model.gaps import Gap

FloatArray = npt.NDArray[np.float64]

HALVINGS = 50
"""Of the interval in which the best mixture lies: far below a byte."""


class Bound:
    """Bounds at any moment and budget of one problem."""

    def __init__(self, candidates: Candidates) -> None:
        self.candidates = candidates
        self.compute_s = float(candidates.elapsed_s[-1])

    def least_s(self, budget_nbytes: int, moments: Iterable[int]) -> float:
        """No plan within the budget takes less, by what each of the moments alone demands."""
        return max((self._at(moment, budget_nbytes) for moment in moments), default=self.compute_s)

    def _at(self, moment: int, budget_nbytes: int) -> float:
        over = float(self.candidates.base[moment] - budget_nbytes)
        near = np.flatnonzero((self._ways[0] < moment) & (moment < self._ways[1]))
        nbytes, price = self._ways[2][near], self._ways[3][near]
        if over <= 0 or (nbytes.sum() < over and not self._can_move):
            return self.compute_s
        order = np.argsort(price, kind="stable")
        nbytes, price = nbytes[order], price[order]
        freed = np.concatenate([[0.0], np.cumsum(nbytes)])
        paid_s = np.concatenate([[0.0], np.cumsum(nbytes * price)])
        computed_s = lambda moved: self.compute_s + float(np.interp(over - moved, freed, paid_s))  # noqa: E731
        if not self._can_move:
            return computed_s(0.0)
        low, high = max(0.0, over - float(freed[-1])), over
        for _ in range(HALVINGS):  # the more is moved, the less is computed and the longer the links take
            middle = (low + high) / 2
            low, high = (middle, high) if computed_s(middle) > self._links_s(moment, middle) else (low, middle)
        return max(self.compute_s, computed_s(high), self._links_s(moment, low))

    def _links_s(self, moment: int, moved_nbytes: float) -> float:
        """Copies out end before the moment, copies back begin after it, and so does compute."""
        out_s, back_s = moved_nbytes * self._out_s_per_byte, moved_nbytes * self._back_s_per_byte
        before_s = float(self.candidates.elapsed_s[moment])
        return max(out_s, before_s) + max(back_s, self.compute_s - before_s)

    @cached_property
    def _can_move(self) -> bool:
        return bool(self.candidates.tiers)

    @cached_property
    def _out_s_per_byte(self) -> float:
        hardware = self.candidates.problem.hardware
        return (
            self._shortest_encoding
            / hardware.link(hardware.tiers[0].name, hardware.tiers[1].name).bandwidth_bytes_per_s
        )

    @cached_property
    def _back_s_per_byte(self) -> float:
        hardware = self.candidates.problem.hardware
        return (
            self._shortest_encoding
            / hardware.link(hardware.tiers[1].name, hardware.tiers[0].name).bandwidth_bytes_per_s
        )

    @cached_property
    def _shortest_encoding(self) -> float:
        """Bytes on the link per byte that leaves, at best."""
        encodings = ((o.encoding, i.gap) for i in self.candidates.items for o in i.options if o.kind == ENCODE_OFFLOAD)
        return min((encoding.nbytes / gap.nbytes for encoding, gap in encodings if encoding is not None), default=1.0)

    @cached_property
    def _ways(self) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """Per gap: the moments around it, the bytes it can be rid of without a link, and the least price of a byte."""
        found = [way for gap in self.candidates.all_gaps if not gap.is_last and (way := self._way(gap)) is not None]
        columns = np.array(found, dtype=np.float64).reshape(-1, 4).T
        return columns[0], columns[1], columns[2], columns[3]

    def _way(self, gap: Gap) -> tuple[float, float, float, float] | None:
        prices: list[float] = []
        end = gap.until
        if self.candidates.replays.sources(gap.storage) is not None:
            prices.append(self._writing_s(gap.storage) / gap.nbytes)
        item = self._items.get((gap.storage, gap.leave))
        for option in item.options if item is not None else ():
            if option.kind == ENCODE and option.held_nbytes < gap.nbytes:
                prices.append(option.seconds / (gap.nbytes - option.held_nbytes))
                end = max(end, option.end(gap))
        return (gap.leave, end, gap.nbytes, min(prices)) if prices else None

    def _writing_s(self, storage: int) -> float:
        """An op that writes several storages writes them all at once."""
        costs = self.candidates.fastest_costs
        return sum(
            costs[moment].seconds / self._num_written[moment] for moment in self.candidates.replays.writers[storage]
        )

    @cached_property
    def _num_written(self) -> Counter[int]:
        return Counter(moment for moments in self.candidates.replays.writers.values() for moment in moments)

    @cached_property
    def _items(self) -> dict[tuple[int, int], GapOptions]:
        return {(item.gap.storage, item.gap.leave): item for item in self.candidates.items}
