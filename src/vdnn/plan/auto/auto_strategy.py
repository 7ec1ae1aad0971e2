"""auto: one budget, every mechanism. Ours; the reason for everything else here.

For every gap of every storage one of keep, offload, encode, encode and offload, recompute, such that the peak stays
within the budget and the step is as fast as it can be: an integer program over all of them, judged by the simulator
(`search.py`). Published relatives decide by layer type (vDNN, SuperNeurons, Gist) or optimise one mechanism
(Checkmate: recomputation; POET and POFO: recomputation and paging).

It meets every budget that `offload` meets. Weakness: order and windows of copies are made after the choice, by rule,
and the program sees a copy under way as bytes that trickle, where a real one holds all its memory until it is done.
"""

from __future__ import annotations

from vdnn.plan.model.problem import Problem
from vdnn.plan.plan import Plan
from vdnn.plan.strategies.strategy import Strategy


def solve(problem: Problem) -> Plan:
    """The fastest plan found within the budget, or Infeasible with the smallest budget that works."""
    from vdnn.plan.auto.search import solve as search  # the solver takes most of a second to import

    return search(problem)


STRATEGY = Strategy("auto", solve, chooses_variants=True, may_round=True, tries_forms=True)
