"""What the ops of a captured step cost.

Enters: a lowered step and the user's options. Leaves: a cost per op, measured on this machine or from the roofline, and
where a budget is to be kept, what ops cost computed in other ways.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from vdnn.capture.lower import Lowered
from vdnn.cost.cost_cache import CostCache
from vdnn.cost.measured import measure, measure_variants
from vdnn.cost.op_calls import may_be_tried, op_calls
from vdnn.cost.roofline import roofline
from vdnn.cost.table import CostTable, OpCost
from vdnn.cost.tried import Trials
from vdnn.hardware.where import CPU
from vdnn.ir import Graph
from vdnn.options import Options
from vdnn.plan.model.budget import resolve_budget
from vdnn.plan.model.problem import Problem
from vdnn.plan.model.surroundings import Surroundings
from vdnn.plan.shared.account import account_nbytes, room_before_step
from vdnn.plan.strategy_table import solve
from vdnn.torch_private import without_modes
from vdnn.units import MiB

Variants = Mapping[int, tuple[OpCost, ...]]

VARIANTS_S = 0.5
"""How long other ways of computing ops are tried before the first plan. The rest is tried before the second step, or at
once: where no plan fits, and where the first plan is the last."""

AGAIN_VARIANTS_S = 0.3
"""The same at a second shape, where those come first that were of use before."""

SMALL_ROOM_NBYTES = 16 * MiB
"""Trials on the CPU may always take this much: a few megabytes more or less are the interpreter's own affair. An
accelerator may have no byte more than the budget."""


@dataclass(frozen=True)
class Estimate:
    """What ops cost, what they cost computed in other ways, and what may still be tried."""

    costs: CostTable
    variants: Variants
    trials: Trials | None = None


def estimate(
    lowered: Lowered,
    options: Options,
    around: Surroundings,
    *,
    variants_s: float = VARIANTS_S,
    like: Trials | None = None,
    granted_nbytes: int = 0,
) -> Estimate:
    """What each op costs, as the options want it known, and where a budget is to be kept, what it costs computed in
    other ways. `variants_s`: how long those are tried. `like`: what is known of the step at another shape.
    `granted_nbytes`: what a share is at least, for tensors."""
    outline = roofline(lowered.graph, options.machine)
    if options.chosen_costs == "roofline":
        return Estimate(outline, {})
    calls, cache, where = op_calls(lowered), CostCache(where=str(lowered.where)), lowered.where
    with without_modes():  # real ops on real tensors, in the middle of a trace
        if options.chosen_costs == "tried":
            room = at_least_small(room_nbytes(lowered.graph, outline, options, around, granted_nbytes), where)
            trials = Trials(
                calls,
                outline,
                cache,
                room_nbytes=room,
                exact=bool(options.exact),
                progress=options.progress,
                like=like,
                where=where,
            )
            if options.budget is not None:
                least_s = min(variants_s, AGAIN_VARIANTS_S) if trials.has_counterparts else variants_s
                trials.try_variants(least_s if options.replan else None)
            return _of_trials(trials, lowered.graph, outline)
        costs = _with_untried(measure(calls, cache, progress=options.progress, where=where), lowered.graph, outline)
        if options.budget is None:
            return Estimate(costs, {})
        return Estimate(
            costs, measure_variants(calls, costs, cache, exact=bool(options.exact), progress=options.progress)
        )


def all_tried(trials: Trials, graph: Graph, outline: CostTable, budget_nbytes: int) -> Estimate:
    """After everything was tried that takes no more than the budget by itself."""
    with without_modes():
        trials.try_rest(at_least_small(budget_nbytes, trials.where))
    return _of_trials(trials, graph, outline)


def _of_trials(trials: Trials, graph: Graph, outline: CostTable) -> Estimate:
    return Estimate(_with_untried(trials.costs, graph, outline), trials.variants(), trials)


def room_nbytes(
    graph: Graph, outline: CostTable, options: Options, around: Surroundings, granted_nbytes: int = 0
) -> int | None:
    """What a trial may allocate: the budget, less what is there before the step. Of a budget that is a share at least
    so much is known before workspaces are."""
    if options.budget is None:
        return None
    problem = Problem(graph, outline, options.machine, surroundings=around)
    kept_nbytes = account_nbytes(solve(problem, "keep-all"), around.of_tensors)
    budget_nbytes = resolve_budget(options.amount, kept_nbytes, around.interpreter_nbytes, granted_nbytes)
    return room_before_step(replace(problem, budget_nbytes=budget_nbytes))


def at_least_small(room_nbytes: int | None, where: torch.device) -> int | None:
    return room_nbytes if room_nbytes is None or where != CPU else max(SMALL_ROOM_NBYTES, room_nbytes)


def _with_untried(costs: CostTable, graph: Graph, outline: CostTable) -> CostTable:
    """What may not be run for the sake of measuring costs what the roofline says."""
    return CostTable(tuple(costs[k] if may_be_tried(op) else outline[k] for k, op in enumerate(graph.ops)))
