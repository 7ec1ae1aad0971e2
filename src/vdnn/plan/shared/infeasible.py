"""A budget that is met, or the words for one that cannot be.

Enters: the smallest plan a strategy could make, still over its budget. Leaves: an `Infeasible` that says what was
asked, what needs the most and when, what fills it, and the way out. Who asked for a share is told the share that works,
who asked for bytes the bytes, so that what is named can be pasted back. All bytes are those of the whole iteration:
what the interpreter holds came off the budget before, and is told again.
"""

from __future__ import annotations

import numpy as np

from vdnn.errors import Infeasible
from vdnn.plan.judge.residency import Holdings, holdings
from vdnn.plan.model.budget import Asked, least_share
from vdnn.plan.model.gaps import moment_nbytes
from vdnn.plan.model.problem import Problem
from vdnn.plan.model.timeline import ROLES
from vdnn.plan.plan import Plan
from vdnn.units import Nbytes, format_nbytes

MOST_NAMED = 6  # lines a person reads before looking at the sum
MOST_IN_PER_CENT = 10  # times that are read more easily in per cent


def infeasible(plan: Plan, way_out: str, *, account_nbytes: int | None = None, account: str = "") -> Infeasible:
    """Why `plan` exceeds its budget. `way_out` completes "Raise budget to at least N, or". `account_nbytes`: what is
    enough, where the step is not alone; `account` says with what."""
    timeline, objects_nbytes = plan.timeline, plan.problem.surroundings.interpreter_nbytes
    step_nbytes = plan.peak_nbytes + objects_nbytes
    needed_nbytes = step_nbytes if account_nbytes is None else account_nbytes
    moment = int(timeline.moments[timeline.peak_at])
    name, asked = plan.problem.graph.ops[moment].name, asked_of(plan.problem)
    lines = [
        f"no {plan.strategy!r} plan fits {asked}: op {moment} {name!r} needs {format_nbytes(step_nbytes)}.",
        *(f"    {format_nbytes(nbytes):>12}  {name}" for nbytes, name in _filling(plan)),
        *(
            [f"    {format_nbytes(objects_nbytes):>12}  the interpreter's objects of the step, or what is rounded up"]
            if objects_nbytes
            else []
        ),
        *([account] if account else []),
        f"Raise budget to at least {enough(needed_nbytes, plan.problem)}, or {way_out}.",
    ]
    return Infeasible("\n".join(lines), minimum_nbytes=Nbytes(needed_nbytes), way_out=way_out)


def asked_of(problem: Problem) -> Asked:
    """The budget as it was said. A problem of which nobody knows has what it bounds, and what came off before."""
    assert problem.budget_nbytes is not None, "without a budget every plan is feasible"
    return problem.asked or Asked(problem.budget_nbytes + problem.surroundings.interpreter_nbytes)


def enough(needed_nbytes: int, problem: Problem) -> str:
    """A budget that works, as the one was said that does not. A share is one of tensors."""
    asked, objects_nbytes, kept = asked_of(problem), problem.surroundings.interpreter_nbytes, kept_nbytes(problem)
    nbytes = f"{format_nbytes(needed_nbytes)} ({needed_nbytes} bytes)"
    if asked.share is not None:
        objects = f", {format_nbytes(objects_nbytes)} of it for the interpreter" if objects_nbytes else ""
        return (
            f"{least_share(needed_nbytes - objects_nbytes, kept)} of what keeping everything takes: {nbytes}{objects}"
        )
    times = f", {_times(needed_nbytes, asked.nbytes)} what was asked" if asked.nbytes else ""
    return f"{nbytes}{times} (keeping everything takes {format_nbytes(kept + objects_nbytes)})"


def _times(needed_nbytes: int, asked_nbytes: int) -> str:
    if needed_nbytes < MOST_IN_PER_CENT * asked_nbytes:
        return f"{least_share(needed_nbytes, asked_nbytes)} of"
    return f"{-(-needed_nbytes // asked_nbytes)} times"


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
    words = " and ".join(
        f"{format_nbytes(nbytes)} on {name}{_BOUNDED_BY.get(name, '')}" for name, nbytes in short.items()
    )
    return f", with room for {words}" if words else ""


_BOUNDED_BY = {
    "host": " (by half of its memory or host_budget, less what the way to disk takes)",
    "disk": " (by its free space or disk_budget; spill_dir names another directory)",
}


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
