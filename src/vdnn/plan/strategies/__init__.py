"""Strategies: who decides. One published policy per file, one signature, one table of names.

Enters: a problem and a name. Leaves: a plan. A strategy may decline with `Infeasible`; it may not be wrong, which
`validate.check` sees to. To add one, write a file with `def solve(problem: Problem) -> Plan` and give it a line in
`STRATEGIES`.
"""

from __future__ import annotations

from collections.abc import Callable

from vdnn.cost.collector import collector_paused
from vdnn.errors import InvalidInput
from vdnn.plan.model.plan import Plan
from vdnn.plan.model.problem import Problem
from vdnn.plan.strategies import (
    auto,
    checkpoint_sqrt,
    gist,
    greedy,
    keep_all,
    offload,
    recompute,
    superneurons,
    vdnn_all,
    vdnn_conv,
    vdnn_dyn,
)

Strategy = Callable[[Problem], Plan]

STRATEGIES: dict[str, Strategy] = {
    "auto": auto.solve,
    "greedy": greedy.solve,
    "keep-all": keep_all.solve,
    "vdnn-all": vdnn_all.solve,
    "vdnn-all(m)": vdnn_all.solve_memory_optimal,
    "vdnn-all(p)": vdnn_all.solve_performance_optimal,
    "vdnn-conv": vdnn_conv.solve,
    "vdnn-conv(m)": vdnn_conv.solve_memory_optimal,
    "vdnn-conv(p)": vdnn_conv.solve_performance_optimal,
    "vdnn-dyn": vdnn_dyn.solve,
    "offload": offload.solve,
    "recompute-speed": recompute.solve_speed,
    "recompute-memory": recompute.solve_memory,
    "recompute-cost": recompute.solve_cost,
    "superneurons": superneurons.solve,
    "checkpoint-sqrt": checkpoint_sqrt.solve,
    "gist": gist.solve,
    "gist-fp16": gist.solve_fp16,
    "gist-fp10": gist.solve_fp10,
    "gist-fp8": gist.solve_fp8,
}


def solve(problem: Problem, strategy: str = "keep-all") -> Plan:
    """The plan of the named strategy, or InvalidInput with the names there are."""
    decide = strategy_named(strategy)
    with collector_paused():
        return decide(problem)


def strategy_named(name: str) -> Strategy:
    if name not in STRATEGIES:
        raise InvalidInput(f"there is no strategy {name!r}. Choose one of: {', '.join(sorted(STRATEGIES))}.")
    return STRATEGIES[name]
