"""The exact plan beside one that is not: every bit kept, room left for the gradients it is compared with.

Enters: the problem of the step as it was traced. Leaves: keep-all where nothing bounds memory, else an offloading plan
inside what the budget leaves when the other plan's gradients, and one difference of two gradients, are held beside it.
Infeasible where that is too little.
"""

from __future__ import annotations

from dataclasses import replace

from vdnn.ir import Role
from vdnn.plan.judge.validate import check
from vdnn.plan.model.problem import Problem
from vdnn.plan.plan import Plan
from vdnn.plan.shared.workspaces import exact_only
from vdnn.plan.strategy_table import solve


def exact_counterpart(asked: Problem) -> Plan:
    problem = replace(exact_only(asked), lossy=None)
    if problem.budget_nbytes is None:
        return check(solve(problem, "keep-all"))
    gradients = [s.nbytes for s in problem.graph.storages if s.role is Role.GRADIENT]
    beside_nbytes = sum(gradients) + 3 * max(gradients, default=0)  # the difference, in double precision
    return check(solve(replace(problem, budget_nbytes=max(0, problem.budget_nbytes - beside_nbytes)), "offload"))
