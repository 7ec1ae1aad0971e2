"""greedy: at the worst step the cheapest bytes first, of all mechanisms. The yardstick of `auto`.

The same options as `auto` has (`plan/optimiser/items.py`), chosen without an integer program: at the step that is
furthest over the budget take whatever frees most bytes per second, and look again (`plan/optimiser/greedy.py`). Where
that does not fit, offloading alone is the answer.
"""

from __future__ import annotations

from dataclasses import replace

from vdnn.plan.plan import Plan
from vdnn.plan.problem import Problem
from vdnn.plan.strategies import offload

NAME = "greedy"


def solve(problem: Problem) -> Plan:
    """A plan within the budget, found in one pass; Infeasible with the smallest budget that offloading can meet."""
    from vdnn.plan.optimiser.compose import compose
    from vdnn.plan.optimiser.greedy import greedy
    from vdnn.plan.optimiser.items import Ground
    from vdnn.plan.optimiser.model import Model

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
