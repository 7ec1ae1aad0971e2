"""A budget that is met, or the words for one that cannot be.

Enters: the smallest plan a strategy could make, still over its budget. Leaves: an `Infeasible` that says what was
asked, what needs the most and when, what fills it, and the way out: in bytes, and as shares of what was asked and of
what keeping everything takes, in which budgets are said too. What the interpreter holds came off the budget before, and
is told again.
"""

from __future__ import annotations

import numpy as np

from vdnn.errors import Infeasible
from vdnn.plan.judge.residency import Holdings, holdings
from vdnn.plan.model.budget import least_share
from vdnn.plan.model.gaps import moment_nbytes
from vdnn.plan.model.problem import Problem
from vdnn.plan.model.timeline import ROLES
from vdnn.plan.plan import Plan
from vdnn.units import Nbytes, format_nbytes

MOST_NAMED = 6  # lines a person reads before looking at the sum


def infeasible(plan: Plan, way_out: str) -> Infeasible:
    """Why `plan` exceeds its budget. `way_out` completes "Raise budget to at least N, or"."""
    timeline, objects_nbytes = plan.timeline, plan.problem.surroundings.interpreter_nbytes
    assert plan.problem.budget_nbytes is not None, "without a budget every plan is feasible"
    asked_nbytes, needed_nbytes = plan.problem.budget_nbytes + objects_nbytes, plan.peak_nbytes + objects_nbytes
    needed, shares = format_nbytes(needed_nbytes), shares_of(needed_nbytes, asked_nbytes, plan.problem)
    moment = int(timeline.moments[timeline.peak_at])
    name = plan.problem.graph.ops[moment].name
    lines = [
        f"no {plan.strategy!r} plan fits {format_nbytes(asked_nbytes)}: op {moment} {name!r} needs {needed}.",
        *(f"    {format_nbytes(nbytes):>12}  {name}" for nbytes, name in _filling(plan)),
        *(
            [f"    {format_nbytes(objects_nbytes):>12}  the interpreter's objects of the step, or what is rounded up"]
            if objects_nbytes
            else []
        ),
        f"Raise budget to at least {needed} ({needed_nbytes} bytes), {shares}, or {way_out}.",
    ]
    return Infeasible("\n".join(lines), minimum_nbytes=Nbytes(needed_nbytes))


def shares_of(needed_nbytes: int, asked_nbytes: int, problem: Problem) -> str:
    """Of what was asked, and as a budget says a share: of the tensors that keeping everything takes."""
    tensors_nbytes = needed_nbytes - problem.surroundings.interpreter_nbytes
    of_kept = f"{least_share(tensors_nbytes, kept_nbytes(problem))} of what keeping everything takes"
    return f"{least_share(needed_nbytes, asked_nbytes)} of what was asked and {of_kept}" if asked_nbytes else of_kept


def kept_nbytes(problem: Problem) -> int:
    """The peak of a step that keeps everything: of the one that shares are of, where the problem says it."""
    if problem.kept_nbytes is not None:
        return problem.kept_nbytes
    return int(moment_nbytes(problem.graph, problem.costs).max(initial=0))


def within_budget(plan: Plan, way_out: str) -> Plan:
    """The plan itself, or Infeasible: a static policy has nothing else to offer."""
    budget_nbytes = plan.problem.budget_nbytes
    if budget_nbytes is not None and plan.peak_nbytes > budget_nbytes:
        raise infeasible(plan, way_out)
    return plan


def bounds_of_tiers(problem: Problem) -> str:
    """What the slower tiers may hold, where not everything fits there: it may be what stands in the way."""
    everything_nbytes = sum(storage.nbytes for storage in problem.graph.storages)
    rooms = {tier.name: tier.nbytes for tier in problem.hardware.tiers[1:] if tier.nbytes is not None}
    short = {name: nbytes for name, nbytes in rooms.items() if nbytes < everything_nbytes}
    words = " and ".join(f"{format_nbytes(nbytes)} on {name}" for name, nbytes in short.items())
    bounds = " (by its free space or disk_budget; spill_dir names another directory)" if "disk" in short else ""
    return f", with room for {words}{bounds}" if words else ""


def _filling(plan: Plan) -> list[tuple[int, str]]:
    """What is on the device at the peak, largest first, the small ones as one line."""
    held, at = holdings(plan, plan.program), plan.timeline.peak_at
    there = np.flatnonzero((held.tiers == 0) & (held.first <= at) & (at <= held.last) & (held.nbytes > 0))
    largest_first = there[np.argsort(-held.nbytes[there], kind="stable")]
    named = [(int(held.nbytes[row]), _name(plan, held, row)) for row in largest_first]
    rest = named[MOST_NAMED:]
    return named[:MOST_NAMED] + ([(sum(nbytes for nbytes, _ in rest), f"{len(rest)} smaller ones")] if rest else [])


def _name(plan: Plan, held: Holdings, row: int) -> str:
    role = ROLES[held.roles[row]]
    return f"{plan.problem.graph.storages[held.storages[row]].name} ({role})" if held.storages[row] >= 0 else role
