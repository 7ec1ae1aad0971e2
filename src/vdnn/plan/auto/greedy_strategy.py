"""greedy: at the worst moment the cheapest bytes first, of all mechanisms. The yardstick of `auto`.

The same options as `auto` has (`plan/auto/candidates.py`), chosen without an integer program: at the moment that is
furthest over the budget take whatever frees most bytes per second, and look again (`plan/auto/greedy_choice.py`). Where
that does not fit, offloading alone is the answer.
"""

from __future__ import annotations

from dataclasses import replace

from vdnn.plan.auto.candidates import Ground
from vdnn.plan.auto.compose import compose
from vdnn.plan.auto.greedy_choice import greedy
from vdnn.plan.auto.program_data import Model
from vdnn.plan.model.problem import Problem
from vdnn.plan.plan import Plan
from vdnn.plan.strategies import offload
from vdnn.plan.strategies.strategy import Strategy

NAME = "greedy"


def solve(problem: Problem) -> Plan:
    """A plan within the budget, found in one pass; Infeasible with the smallest budget that offloading can meet."""

    kept = offload.keeping(problem, NAME)
    budget_nbytes = problem.budget_nbytes
    if budget_nbytes is None or kept.peak_nbytes <= budget_nbytes:
        return kept
    ground = Ground(problem)
    choices = greedy(Model(ground, tuple((k,) for k in range(len(ground.items)))), budget_nbytes)
    if choices is not None:
        plan = replace(compose(ground, choices, budget_nbytes), strategy=NAME)
        if plan.peak_nbytes <= budget_nbytes:
            return plan
    return replace(offload.solve(problem), strategy=NAME)


STRATEGY = Strategy(NAME, solve, chooses_variants=True)
