"""The words for a budget that cannot be met.

Enters: the smallest plan a strategy could make, still over its budget. Leaves: an `Infeasible` that says what was
asked, what needs the most and when, what fills it, and the way out.
"""

from __future__ import annotations

from vdnn.errors import Infeasible
from vdnn.plan.plan import Plan
from vdnn.plan.residency import holdings
from vdnn.plan.schedule import schedule
from vdnn.units import format_nbytes

MOST_NAMED = 6  # lines a person reads before looking at the sum


def infeasible(plan: Plan, way_out: str) -> Infeasible:
    """Why `plan` exceeds its budget. `way_out` completes "Raise budget to at least N, or"."""
    budget_nbytes, timeline = plan.problem.budget_nbytes, plan.timeline
    assert budget_nbytes is not None, "without a budget every plan is feasible"
    peak = format_nbytes(plan.peak_nbytes)
    step = int(timeline.steps[timeline.peak_at])
    name = plan.problem.graph.ops[step].name
    lines = [
        f"no {plan.strategy!r} plan fits {format_nbytes(budget_nbytes)}: step {step} {name!r} needs {peak}.",
        *(f"    {format_nbytes(nbytes):>12}  {name}" for nbytes, name in _filling(plan)),
        f"Raise budget to at least {peak} ({plan.peak_nbytes} bytes), or {way_out}.",
    ]
    return Infeasible("\n".join(lines), minimum_nbytes=plan.peak_nbytes)


def _filling(plan: Plan) -> list[tuple[int, str]]:
    """What is on the device at the peak, largest first, the small ones as one line."""
    graph, device, at = plan.problem.graph, plan.problem.hardware.device.name, plan.timeline.peak_at
    there = [h for h in holdings(plan, schedule(plan)) if h.tier == device and h.first <= at <= h.last and h.nbytes]
    there.sort(key=lambda holding: -holding.nbytes)
    named = [(h.nbytes, f"{graph.storages[h.storage].name} ({h.role})" if h.storage >= 0 else h.role) for h in there]
    rest = named[MOST_NAMED:]
    return named[:MOST_NAMED] + ([(sum(nbytes for nbytes, _ in rest), f"{len(rest)} smaller ones")] if rest else [])
