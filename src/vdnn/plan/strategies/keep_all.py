"""keep-all: nothing moves. What plain PyTorch does, with every storage freed after its last use.

The yardstick of the other strategies: the peak that they lower and the time that they may not lose. SuperNeurons (PPoPP
2018, section 3.2) calls its peak the cost of liveness analysis alone.
"""

from __future__ import annotations

from vdnn.plan.model.problem import Problem
from vdnn.plan.plan import Plan
from vdnn.plan.shared.infeasible import within_budget
from vdnn.plan.strategies.strategy import Strategy

_WAY_OUT = "choose a strategy that moves feature maps: 'keep-all' moves none"


def solve(problem: Problem) -> Plan:
    """A plan without decisions, or Infeasible when its peak is over the budget."""
    return within_budget(Plan(problem, "keep-all"), _WAY_OUT)


STRATEGY = Strategy("keep-all", solve)
