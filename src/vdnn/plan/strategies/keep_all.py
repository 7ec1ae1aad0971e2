"""keep-all: nothing moves. What plain PyTorch does, with every storage freed after its last use.

The yardstick of the other strategies: the peak that they lower and the time that they may not lose. SuperNeurons (PPoPP
2018, section 3.2) calls its peak the cost of liveness analysis alone.
"""

from __future__ import annotations

from vdnn.plan.judge.infeasible import infeasible
from vdnn.plan.model.plan import Plan
from vdnn.plan.model.problem import Problem


def solve(problem: Problem) -> Plan:
    """A plan without decisions, or Infeasible when its peak is over the budget."""
    plan = Plan(problem, "keep-all")
    if problem.budget_nbytes is not None and plan.peak_nbytes > problem.budget_nbytes:
        raise infeasible(plan, "choose a strategy that moves feature maps: 'keep-all' moves none")
    return plan
