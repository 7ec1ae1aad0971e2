"""vdnn-conv: only convolutions offload their X. vDNN (MICRO 2016, section 3.4), policy vDNN_conv.

A convolution runs long enough to hide a copy, a pooling layer does not: fewer maps leave, and fewer copies are waited
for. (m), (p) and the plain name choose algorithms as in `vdnn_all.py`.
"""

from __future__ import annotations

from vdnn.plan.model.problem import Problem
from vdnn.plan.plan import Plan
from vdnn.plan.shared.infeasible import within_budget
from vdnn.plan.strategies.strategy import Strategy
from vdnn.plan.strategies.vdnn_policy import (
    CONV_LAYERS,
    MEMORY_OPTIMAL,
    PERFORMANCE_OPTIMAL,
    static_plan,
)

_WAY_OUT = "choose 'vdnn-all' or 'offload', which move more maps"


def solve(problem: Problem) -> Plan:
    """Every X of a convolution offloaded, fastest algorithms."""
    return within_budget(static_plan(problem, "vdnn-conv", CONV_LAYERS, PERFORMANCE_OPTIMAL), _WAY_OUT)


def solve_memory_optimal(problem: Problem) -> Plan:
    return within_budget(static_plan(problem, "vdnn-conv(m)", CONV_LAYERS, MEMORY_OPTIMAL), _WAY_OUT)


def solve_performance_optimal(problem: Problem) -> Plan:
    plan = static_plan(problem, "vdnn-conv(p)", CONV_LAYERS, PERFORMANCE_OPTIMAL)
    return within_budget(plan, f"take algorithms with less workspace by 'vdnn-conv(m)', or {_WAY_OUT}")


STRATEGIES = (
    Strategy("vdnn-conv", solve, chooses_variants=True),
    Strategy("vdnn-conv(m)", solve_memory_optimal, chooses_variants=True),
    Strategy("vdnn-conv(p)", solve_performance_optimal, chooses_variants=True),
)
