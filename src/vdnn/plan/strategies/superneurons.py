"""superneurons: liveness, offloading of what is expensive, recomputation of what is cheap. Wang et al., PPoPP 2018.

Liveness is what every plan has. Cheap layers are dropped and made again, segment by segment, by the cost-aware rule of
`recompute.py`; what is not recomputed (outputs of convolutions and other checkpoints) is copied to a slower tier and
fetched ahead of its use. Together the peak comes down to the largest need of a single op, l_peak in the paper, here
`bounds.minimum_budget`: with parameters, workspaces and all.

Where we leave the paper: copies are made only as far as the budget asks for (its tensor cache has the same aim), by the
windows of `offload`; without a budget the floor is the budget. A segment whose replays would not fit at the floor is
offloaded instead, so the floor is reached on every network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from vdnn.errors import Infeasible
from vdnn.plan.model.bounds import minimum_budget
from vdnn.plan.model.problem import Problem
from vdnn.plan.model.segments import Segment
from vdnn.plan.model.surroundings import ALONE
from vdnn.plan.plan import Plan
from vdnn.plan.strategies.offload import beside, keeping, least_per_moment
from vdnn.plan.strategies.recompute import SegmentUses, cost_aware
from vdnn.plan.strategies.strategy import Strategy

STRATEGY_NAME = "superneurons"

Moments = npt.NDArray[np.int64]


def solve(problem: Problem) -> Plan:
    """Every cheap segment recomputed that leaves the budget within reach; the rest moves as far as it must."""
    return _at_the_floor(problem) if problem.budget_nbytes is None else _within(problem, problem.budget_nbytes)


def _at_the_floor(problem: Problem) -> Plan:
    """Where slower tiers are full before that, as near to the floor as they allow."""
    budget_nbytes, _ = minimum_budget(problem)
    alone = replace(problem, surroundings=ALONE)
    while True:
        try:
            plan = _within(replace(alone, budget_nbytes=budget_nbytes), budget_nbytes)
        except Infeasible as reason:
            budget_nbytes = max(reason.minimum_nbytes, budget_nbytes + 1)
            continue
        return replace(plan, problem=problem)


def _within(problem: Problem, budget_nbytes: int) -> Plan:
    uses_of = SegmentUses(problem)
    chosen = uses_of.segments
    kept = keeping(problem, STRATEGY_NAME, uses_of.decisions(cost_aware, chosen))
    while chosen and (over := np.flatnonzero(least_per_moment(kept) > budget_nbytes)).size:
        chosen = _without_those_at(uses_of, over, chosen)
        kept = keeping(problem, STRATEGY_NAME, uses_of.decisions(cost_aware, chosen))
    return beside(kept)


def _without_those_at(uses_of: SegmentUses, over: Moments, chosen: Sequence[Segment]) -> tuple[Segment, ...]:
    """Without the segments that are there again at moments that need too much; at least without the nearest."""
    spans = [_span(segment, uses_of) for segment in chosen]
    there = {k for k, (first, last) in enumerate(spans) if ((over >= first) & (over <= last)).any()}
    if not there:
        there = {min(range(len(chosen)), key=lambda k: int(np.abs(over - spans[k][0]).min()))}
    return tuple(segment for k, segment in enumerate(chosen) if k not in there)


def _span(segment: Segment, uses_of: SegmentUses) -> tuple[int, int]:
    """From the moment at which a segment is made again to its last use."""
    moments = uses_of.wanted(segment)
    return min(moments), max(moments)


STRATEGY = Strategy(STRATEGY_NAME, solve)
