"""A plan in a few figures, and beside them those of keeping everything on the same device.

Enters: a plan. Leaves: frozen `Figures` for tables and JSON. Keeping everything is the oracle of vDNN's evaluation
(MICRO 2016, section 5): a device like this one with room for all of it. What a plan takes longer than that is its loss.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from vdnn.plan.judge.schedule import Kind
from vdnn.plan.model.actions import EncodeOffload
from vdnn.plan.model.problem import Problem
from vdnn.plan.plan import Plan
from vdnn.plan.strategy_table import solve

TRAVELS = frozenset({Kind.SEND, Kind.FETCH})


@dataclass(frozen=True, slots=True)
class Figures:
    """`moved_nbytes` counts what leaves the device and what comes back to it, `actions` the decisions by kind.

    `saved_nbytes` is what the peak is below the oracle's, `loss` the share of the oracle's time that the step takes
    longer.
    """

    strategy: str
    peak_nbytes: int
    average_nbytes: float
    step_time_s: float
    stall_s: float
    moved_nbytes: int
    recomputed_flops: int
    num_replays: int
    actions: Mapping[str, int]
    saved_nbytes: int
    loss: float


def keep_all(problem: Problem) -> Plan:
    """The oracle: the problem without a bound, everything kept, every op computed as it was traced."""
    return solve(replace(problem, budget_nbytes=None), "keep-all")


def figures(plan: Plan, oracle: Plan | None = None) -> Figures:
    """`oracle` is `keep_all` of the plan's problem, for whoever has it already."""
    oracle = oracle or keep_all(plan.problem)
    replays = [plan.problem.graph.ops[i.op] for i in plan.program if i.kind is Kind.REPLAY]
    return Figures(
        strategy=plan.strategy,
        peak_nbytes=plan.peak_nbytes,
        average_nbytes=plan.timeline.average_nbytes,
        step_time_s=plan.step_time_s,
        stall_s=plan.timeline.stall_s,
        moved_nbytes=moved_nbytes(plan),
        recomputed_flops=sum(op.flops for op in replays),
        num_replays=len(replays),
        actions=dict(sorted(Counter(decision.action.kind for decision in plan.decisions).items())),
        saved_nbytes=oracle.peak_nbytes - plan.peak_nbytes,
        loss=plan.step_time_s / oracle.step_time_s - 1 if oracle.step_time_s else 0.0,
    )


def moved_nbytes(plan: Plan) -> int:
    """Bytes that cross the device's border in one training step, both ways."""
    return sum(carried_nbytes(plan, i.decision) for i in plan.program if i.kind in TRAVELS)


def carried_nbytes(plan: Plan, decision: int) -> int:
    """What a copy of this decision carries one way: the storage, or its encoding."""
    action = plan.decisions[decision].action
    if isinstance(action, EncodeOffload):
        return action.nbytes
    return plan.problem.graph.storages[plan.decisions[decision].storage].nbytes
