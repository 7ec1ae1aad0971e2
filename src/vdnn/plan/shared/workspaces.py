"""Workspaces that take what is free: each op is computed in the fastest way that its free bytes allow.

Enters: a finished plan, or a problem. Leaves: the plan with a variant chosen for every op that offers some.
SuperNeurons (PPoPP 2018, section 3.5) puts tensors first and gives workspaces what is left. So do we: strategies plan
with the smallest workspace of every op, and what their plan leaves free then buys speed. The one idea: a workspace
exists at its own instruction only, so the choices do not touch each other.

Strategies that choose variants themselves are left alone (`plan/strategy_table.py`).
"""

from __future__ import annotations

from dataclasses import replace

from vdnn.cost.table import OpCost
from vdnn.plan.judge.schedule import Kind
from vdnn.plan.model.problem import Problem
from vdnn.plan.plan import Plan


def fitting_variants(plan: Plan) -> Plan:
    """The plan with the fastest variant at every op that keeps it within its budget; where there is none, within the
    peak that the plan has."""
    bound_nbytes = plan.problem.budget_nbytes
    free = free_nbytes(plan, plan.peak_nbytes if bound_nbytes is None else bound_nbytes)
    chosen = {
        moment: next(
            (k for k, cost in enumerate(offered) if cost.workspace_nbytes <= free[moment]), plan.variants.get(moment)
        )
        for moment, offered in plan.problem.variants.items()
    }
    return replace(plan, variants={moment: k for moment, k in chosen.items() if k is not None})


def free_nbytes(plan: Plan, bound_nbytes: int) -> dict[int, int]:
    """Of each op: the bytes that a workspace may take, whenever the op runs, be it again in backward."""
    total = plan.timeline.total()
    free: dict[int, int] = {}
    for position, instruction in enumerate(plan.program):
        if instruction.kind in (Kind.RUN, Kind.REPLAY):
            there = bound_nbytes - int(total[position]) + plan.costs[instruction.op].workspace_nbytes
            free[instruction.op] = min(there, free.get(instruction.op, there))
    return free


def exact_only(problem: Problem) -> Problem:
    """The same problem without variants that change bits."""
    exact = {moment: tuple(cost for cost in offered if cost.exact) for moment, offered in problem.variants.items()}
    return replace(problem, variants={moment: offered for moment, offered in exact.items() if offered})


def inexact_ops(plan: Plan) -> dict[int, OpCost]:
    """The ops that a plan has computed in a way that changes bits."""
    return {moment: plan.costs[moment] for moment in plan.variants if not plan.costs[moment].exact}


def smallest_variants(problem: Problem) -> dict[int, int]:
    """For every op the alternative with the least workspace; none where the cost table's own has less."""
    least = {
        moment: min(range(len(offered)), key=lambda k: offered[k].workspace_nbytes)
        for moment, offered in problem.variants.items()
    }
    return {
        moment: k
        for moment, k in least.items()
        if problem.variants[moment][k].workspace_nbytes <= problem.costs[moment].workspace_nbytes
    }
