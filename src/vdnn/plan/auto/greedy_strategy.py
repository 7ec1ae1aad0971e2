"""greedy: at the worst moment the cheapest bytes first, of all mechanisms. The yardstick of `auto`.

The same options as `auto` has (`plan/auto/candidates.py`), chosen without an integer program: at the moment that is
furthest over the budget take whatever frees most bytes per second, and look again (`plan/auto/greedy_choice.py`). Where
that does not fit, offloading alone is the answer.
"""

from __future__ import annotations

from dataclasses import replace

from vdnn.plan.auto.candidates import Candidates
from vdnn.plan.auto.compose import compose
from vdnn.plan.auto.greedy_choice import greedy
from vdnn.plan.auto.program_data import ProgramData
from vdnn.plan.model.problem import Problem
from vdnn.plan.plan import Plan
from vdnn.plan.strategies import offload
from vdnn.plan.strategies.strategy import Strategy

STRATEGY_NAME = "greedy"


def solve(problem: Problem) -> Plan:
    """A plan within the budget, found in one pass; Infeasible with the smallest budget that offloading can meet."""

    kept = offload.keeping(problem, STRATEGY_NAME)
    budget_nbytes = problem.budget_nbytes
    if budget_nbytes is None or kept.peak_nbytes <= budget_nbytes:
        return kept
    candidates = Candidates(problem)
    choices = greedy(ProgramData(candidates, tuple((k,) for k in range(len(candidates.items)))), budget_nbytes)
    if choices is not None:
        plan = replace(compose(candidates, choices, budget_nbytes), strategy=STRATEGY_NAME)
        if plan.peak_nbytes <= budget_nbytes:
            return plan
    return replace(offload.solve(problem), strategy=STRATEGY_NAME)


STRATEGY = Strategy(STRATEGY_NAME, solve, chooses_variants=True)
