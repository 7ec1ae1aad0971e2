"""Strategies by name: the table, and the call.

Enters: a problem and a name. Leaves: a plan. The table is built from what the strategies' own files declare. To add a
strategy, write a file in `strategies/` with `def solve(problem: Problem) -> Plan` and a `STRATEGY`, and name the file
here. Importing this is cheap: no torch, and the solver behind `auto` is imported when it is asked.
"""

from __future__ import annotations

from dataclasses import replace

from vdnn.cost.collector import collector_paused
from vdnn.errors import InvalidInput
from vdnn.plan.auto import auto_strategy, greedy_strategy
from vdnn.plan.model.bounds import smallest_costs
from vdnn.plan.model.problem import Problem
from vdnn.plan.plan import Plan
from vdnn.plan.shared.workspaces import fitting_variants, smallest_variants
from vdnn.plan.strategies import (
    checkpoint_sqrt,
    gist,
    keep_all,
    offload,
    recompute,
    superneurons,
    vdnn_all,
    vdnn_conv,
    vdnn_dyn,
)
from vdnn.plan.strategies.strategy import Strategy

_DECLARED = (
    auto_strategy.STRATEGY,
    greedy_strategy.STRATEGY,
    keep_all.STRATEGY,
    *vdnn_all.STRATEGIES,
    *vdnn_conv.STRATEGIES,
    vdnn_dyn.STRATEGY,
    offload.STRATEGY,
    *recompute.STRATEGIES,
    superneurons.STRATEGY,
    checkpoint_sqrt.STRATEGY,
    *gist.STRATEGIES,
)

STRATEGIES: dict[str, Strategy] = {strategy.name: strategy for strategy in _DECLARED}
"""In the order in which `vdnn compare` shows them."""


def strategy_named(name: str) -> Strategy:
    """The strategy of that name, or InvalidInput with the names there are."""
    if name not in STRATEGIES:
        raise InvalidInput(f"there is no strategy {name!r}. Choose one of: {', '.join(sorted(STRATEGIES))}.")
    return STRATEGIES[name]


def solve(problem: Problem, strategy: str = "keep-all") -> Plan:
    """The plan of the named strategy, or InvalidInput with the names there are."""
    asked = strategy_named(strategy)
    with collector_paused():
        return asked.solve(problem)


def solve_with_workspaces(problem: Problem, strategy: str) -> Plan:
    """The strategy's plan at the smallest workspaces, then with the fastest variants that fit beside it."""
    if not problem.variants or strategy_named(strategy).chooses_variants:
        return solve(problem, strategy)
    lean = solve(replace(problem, costs=smallest_costs(problem)), strategy)
    chosen = smallest_variants(problem) | dict(lean.variants)
    asked = replace(lean.problem, costs=problem.costs)  # a strategy may have changed more of the problem
    return fitting_variants(replace(lean, problem=asked, variants=chosen))
