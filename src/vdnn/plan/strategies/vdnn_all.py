"""vdnn-all: every convolution and pooling layer offloads its X. vDNN (MICRO 2016, section 3.4), policy vDNN_all.

The most memory a static vDNN can save; the paper uses it with memory-optimal algorithms as the test of whether a
network can be trained at all. (m) gives every convolution the algorithm with the least workspace, (p) the fastest; the
plain name is (p), which is the same thing where the problem offers no choice.
"""

from __future__ import annotations

from vdnn.plan.model.problem import Problem
from vdnn.plan.plan import Plan
from vdnn.plan.shared.infeasible import within_budget
from vdnn.plan.strategies.strategy import Strategy
from vdnn.plan.strategies.vdnn_policy import (
    FEATURE_EXTRACTION_LAYERS,
    MEMORY_OPTIMAL,
    PERFORMANCE_OPTIMAL,
    static_plan,
)

_WAY_OUT = "choose 'offload', which moves other maps too"


def solve(problem: Problem) -> Plan:
    """Every X of a convolution or pooling layer offloaded, fastest algorithms."""
    plan = static_plan(problem, "vdnn-all", FEATURE_EXTRACTION_LAYERS, PERFORMANCE_OPTIMAL)
    return within_budget(plan, _WAY_OUT)


def solve_memory_optimal(problem: Problem) -> Plan:
    plan = static_plan(problem, "vdnn-all(m)", FEATURE_EXTRACTION_LAYERS, MEMORY_OPTIMAL)
    return within_budget(plan, _WAY_OUT)


def solve_performance_optimal(problem: Problem) -> Plan:
    plan = static_plan(problem, "vdnn-all(p)", FEATURE_EXTRACTION_LAYERS, PERFORMANCE_OPTIMAL)
    return within_budget(plan, f"take algorithms with less workspace by 'vdnn-all(m)', or {_WAY_OUT}")


STRATEGIES = (
    Strategy("vdnn-all", solve, chooses_variants=True),
    Strategy("vdnn-all(m)", solve_memory_optimal, chooses_variants=True),
    Strategy("vdnn-all(p)", solve_performance_optimal, chooses_variants=True),
)
