"""Which form of a step is run: as it was traced, or with some of its ops split over the batch.

Enters: the traced step with its problem, and the other forms that `capture/forms/` offers. Leaves: a form and its plan.
The one idea: a form is one more candidate. The traced step is planned first; where it does not fit, or where keeping
the budget costs more than a little time, others are planned too and the fastest is taken. Forms are looked at with
care, because each has to be written, priced and solved: one whose largest step is over the budget is left out before
its ops are measured, and the search ends with the first that costs next to nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from torch import fx

from vdnn.capture.forms import Form
from vdnn.capture.lower import Lowered
from vdnn.errors import Infeasible
from vdnn.plan.bounds import minimum_budget
from vdnn.plan.plan import Plan
from vdnn.plan.problem import Problem
from vdnn.units import format_nbytes

WORTH_A_LOOK = 0.03
"""Share of the step time that a budget may cost before other forms are looked at."""

GOOD_ENOUGH = 0.01
"""Share of the step time that a form may cost for the search to end with it."""


MOST_TRIED = 5
"""Forms that are priced and solved at most."""


@dataclass(frozen=True)
class Posed:
    """A step in one form: its graph, lowered, and the problem that it poses. `traced` is the step that it is another
    form of."""

    joint: fx.GraphModule
    lowered: Lowered
    problem: Problem
    traced: Posed | None = None


Solve = Callable[[Problem], Plan]


def choose_form(
    traced: Posed,
    offered: Iterable[Form],
    pose: Callable[[Form], Posed],
    price: Callable[[Posed], Posed],
    solve: Solve,
) -> tuple[Posed, Plan]:
    """The fastest form within the budget; Infeasible with the least that any form needs when there is none.

    `pose` writes a form and prices it in outline; `price` finds out what its ops really take.
    """
    kept_s = sum(cost.seconds for cost in traced.problem.costs.ops)
    best: tuple[Posed, Plan] | None = None
    refusal: Infeasible | None = None
    too_large: list[tuple[int, str]] = []
    for posed in _tried(traced, offered, pose, price, too_large):
        try:
            plan = solve(posed.problem)
        except Infeasible as reason:
            refusal = reason if refusal is None or reason.minimum_nbytes < refusal.minimum_nbytes else refusal
            continue
        if best is None or plan.step_time_s < best[1].step_time_s:
            best = posed, plan
        enough = WORTH_A_LOOK if posed is traced else GOOD_ENOUGH
        if best[1].step_time_s <= kept_s * (1 + enough):
            break
    if best is None:
        assert refusal is not None, "what was tried either fits or says why not"
        raise _with_forms(refusal, too_large)
    return best


def _with_forms(refusal: Infeasible, too_large: list[tuple[int, str]]) -> Infeasible:
    """The same, with the form that needs least, if it needs less than what was solved."""
    least_nbytes, form = min(too_large, default=(refusal.minimum_nbytes, ""))
    if least_nbytes >= refusal.minimum_nbytes:
        return refusal
    words = f"With {form} {format_nbytes(least_nbytes)} ({least_nbytes} bytes), and workspaces, would do."
    return Infeasible(f"{refusal}\n{words}", minimum_nbytes=refusal.minimum_nbytes)


def _tried(
    traced: Posed,
    offered: Iterable[Form],
    pose: Callable[[Form], Posed],
    price: Callable[[Posed], Posed],
    too_large: list[tuple[int, str]],
) -> Iterator[Posed]:
    """The traced step, then forms that can fit; what those need that cannot is noted in `too_large`."""
    yield traced
    tried = 0
    for form in offered:
        posed = pose(form)
        least_nbytes, _ = minimum_budget(posed.problem)
        if traced.problem.budget_nbytes is None or least_nbytes <= traced.problem.budget_nbytes:
            yield price(posed)
            tried += 1
        else:
            too_large.append((least_nbytes, form.name))
        if tried == MOST_TRIED:
            return
