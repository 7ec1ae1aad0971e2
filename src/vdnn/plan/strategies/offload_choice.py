"""Which gaps `offload` uses: the smallest set that brings every moment within the budget.

Enters: gaps in the order in which they would be given up, the bytes of every moment, a budget. Leaves: the chosen ones,
each with its tier (None: it is dropped, nobody uses it again). The one idea: gaps nest (first out, last back), so few
moments bind. Take the worst moment, give up gaps over it in order until it fits, look for the worst moment again; what
turned out not to be needed is taken back.

Where tiers are bounded the order in which they fill matters, and a choice made for one budget could fail where another
would not. `exhaust` therefore goes gap by gap in a sequence that does not depend on the budget: a larger budget stops
earlier in the same sequence, so the peak at which it gets stuck is a budget that it meets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vdnn.plan.model.gaps import Gap, NbytesArray, without
from vdnn.plan.model.tier_room import TierRoom


@dataclass(frozen=True, slots=True)
class GapChoice:
    """Use this gap; `tier` is None when the storage is dropped instead of copied."""

    gap: Gap
    tier: str | None


def choose(order: Sequence[Gap], nbytes: NbytesArray, budget_nbytes: int, room: TierRoom) -> list[GapChoice] | None:
    """A small set of gaps under which every moment fits, or None when this order finds none."""
    taken, fits = _give_up(order, nbytes, budget_nbytes, room, at_once=True)
    return taken if fits else None


def exhaust(
    order: Sequence[Gap], nbytes: NbytesArray, budget_nbytes: int, room: TierRoom
) -> tuple[list[GapChoice], bool]:
    """Gap by gap until every moment fits (True) or nothing more can be given up at the worst moment (False)."""
    return _give_up(order, nbytes, budget_nbytes, room, at_once=False)


def _give_up(
    order: Sequence[Gap], nbytes: NbytesArray, budget_nbytes: int, room: TierRoom, *, at_once: bool
) -> tuple[list[GapChoice], bool]:
    """What was given up, and whether every moment fits then. `at_once`: all that the worst moment needs before the next
    moment is looked at; else one gap, and the worst moment is looked for again.
    """
    level = nbytes.copy()
    leave = np.array([gap.leave for gap in order], dtype=np.int64)
    until = np.array([gap.until for gap in order], dtype=np.int64)
    is_free = np.ones(len(order), dtype=np.bool_)
    taken: list[GapChoice] = []
    moment = int(level.argmax())
    while level[moment] > budget_nbytes:
        covering = is_free & (leave < moment) & (moment < until)
        if not covering.any():
            return taken, False
        for k in np.flatnonzero(covering).tolist() if at_once else [int(covering.argmax())]:
            gap = order[k]
            is_free[k] = False
            tier = None if gap.is_last else room.take(gap.nbytes, gap.final, gap.until)
            if tier is None and not gap.is_last:
                continue  # no tier has room for it, now or later
            taken.append(GapChoice(gap, tier))
            level[gap.leave + 1 : gap.until] -= gap.nbytes
            if level[moment] <= budget_nbytes:
                break
        moment = int(level.argmax())
    return taken, True


def pruned(chosen: Sequence[GapChoice], nbytes: NbytesArray, budget_nbytes: int) -> list[GapChoice]:
    """Without those that the others made unnecessary, the last chosen first."""
    level = without(nbytes, [choice.gap for choice in chosen])
    needed: list[GapChoice] = []
    for choice in reversed(chosen):
        gap = choice.gap
        stretch = level[gap.leave + 1 : gap.until]
        if int(stretch.max()) + gap.nbytes <= budget_nbytes:
            stretch += gap.nbytes
        else:
            needed.append(choice)
    return needed[::-1]
