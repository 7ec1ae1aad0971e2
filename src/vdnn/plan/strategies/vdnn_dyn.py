"""vdnn-dyn: trial passes decide what to offload and how to convolve. vDNN (MICRO 2016, section 3.4), policy vDNN_dyn.

The paper runs each pass on the device and sees whether it completes; here the simulator runs it against the budget.

    1  vdnn-all, least workspace everywhere: does not fit -> the network cannot be trained (Infeasible)
    2  nothing offloaded, fastest algorithms
    3  vdnn-conv, fastest algorithms
    4  vdnn-all, fastest algorithms
    5  vdnn-conv; a convolution that overflows takes the next fastest algorithm with less workspace
    6  vdnn-all, likewise
    7  the plan of pass 1

The first of 2 to 7 that fits is the plan, and its note says which. Pass 0 of the paper, the timing of algorithms, is
what `problem.variants` holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from vdnn.plan.model.actions import Decision
from vdnn.plan.model.problem import Problem
from vdnn.plan.plan import Plan
from vdnn.plan.shared.infeasible import infeasible
from vdnn.plan.strategies.strategy import Strategy
from vdnn.plan.strategies.vdnn_policy import (
    CONV_LAYERS,
    FEATURE_EXTRACTION_LAYERS,
    MEMORY_OPTIMAL,
    PERFORMANCE_OPTIMAL,
    decisions,
    variants,
)


def solve(problem: Problem) -> Plan:
    """The plan of the first pass that fits, or Infeasible when the feasibility pass does not."""
    feasible = Plan(
        problem, "vdnn-dyn", decisions(problem, FEATURE_EXTRACTION_LAYERS), variants(problem, MEMORY_OPTIMAL)
    )
    if not _fits(feasible):
        raise infeasible(feasible, "choose 'offload', which moves other maps too")
    trials = (_noted(number, what, plan) for number, what, plan in _trials(feasible) if plan is not None)
    return next(plan for plan in trials if _fits(plan))  # the last trial is the feasible plan


def _trials(feasible: Plan) -> Iterator[tuple[int, str, Plan | None]]:
    problem = feasible.problem
    conv, every = decisions(problem, CONV_LAYERS), feasible.decisions
    fastest = variants(problem, PERFORMANCE_OPTIMAL)
    yield 2, "nothing offloaded, fastest algorithms", replace(feasible, decisions=(), variants=fastest)
    yield 3, "vdnn-conv, fastest algorithms", replace(feasible, decisions=conv, variants=fastest)
    yield 4, "vdnn-all, fastest algorithms", replace(feasible, variants=fastest)
    yield 5, "vdnn-conv, algorithms downgraded where they overflow", _downgraded(feasible, conv)
    yield 6, "vdnn-all, algorithms downgraded where they overflow", _downgraded(feasible, every)
    yield 7, "vdnn-all, least workspace", feasible


def _downgraded(feasible: Plan, offloads: tuple[Decision, ...]) -> Plan | None:
    """Each convolution with the fastest algorithm whose workspace still fits at its moment; None: not even the last
    does.

    A moment's other bytes follow from the decisions alone, so the choice at one moment does not touch the next.
    """
    problem = feasible.problem
    bare = replace(feasible, decisions=offloads, variants=variants(problem, MEMORY_OPTIMAL))
    timeline, chosen = bare.timeline, dict(bare.variants)
    peaks: dict[int, int] = {}
    for moment, nbytes in zip(timeline.moments.tolist(), timeline.total().tolist(), strict=True):
        peaks[moment] = max(peaks.get(moment, 0), nbytes)
    for moment, offered in problem.variants.items():
        others_nbytes = peaks[moment] - offered[chosen[moment]].workspace_nbytes
        room_nbytes = (problem.budget_nbytes or 0) - others_nbytes
        fitting = (k for k, cost in enumerate(offered) if cost.workspace_nbytes <= room_nbytes)
        fastest = next(fitting, None)
        if fastest is None:
            return None
        chosen[moment] = fastest
    return replace(bare, variants=chosen)


def _fits(plan: Plan) -> bool:
    return plan.problem.budget_nbytes is None or plan.peak_nbytes <= plan.problem.budget_nbytes


def _noted(number: int, what: str, plan: Plan) -> Plan:
    said = f"pass {number}: {what}"
    reasons = tuple(replace(decision, reason=f"{said}; {decision.reason}") for decision in plan.decisions)
    return replace(plan, decisions=reasons, note=f"vdnn-dyn {said}")


STRATEGY = Strategy("vdnn-dyn", solve, chooses_variants=True)
