"""Which form of a step is run: as it was traced, or with some of its ops split over the batch.

Enters: the traced step with its problem, and the other forms that `capture/forms/` offers. Leaves: a form and its plan.
The one idea: a form is one more candidate. The traced step is planned first; where it does not fit, or where keeping
the budget costs more than a little time, others are planned too and the fastest is taken. Forms are looked at with
care, because each has to be written, priced and solved: one whose largest step is over the budget is left out before
its ops are measured, and the search ends with the first that costs next to nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from torch import fx

from vdnn.capture.forms import Form
from vdnn.capture.lower import Lowered
from vdnn.errors import Infeasible
from vdnn.plan.bounds import largest_step_nbytes
from vdnn.plan.plan import Plan
from vdnn.plan.problem import Problem
from vdnn.units import format_nbytes

WORTH_A_LOOK = 0.03
"""Share of the step time that a budget may cost before other forms are looked at."""

GOOD_ENOUGH = 0.01
"""Share of the step time that a form may cost for the search to end with it."""


MOST_TRIED = 5
"""Forms that are priced and solved at most, once one of them fits."""


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
    search = _Search(solve, traced.problem.budget_nbytes, sum(cost.seconds for cost in traced.problem.costs.ops))
    search.look_at(traced)
    if not search.is_good_enough(WORTH_A_LOOK):
        for number, posed in enumerate(search.those_that_may_fit(map(pose, offered)), start=1):
            search.look_at(price(posed))
            if search.is_good_enough(GOOD_ENOUGH) or (search.best is not None and number >= MOST_TRIED):
                break
    if search.best is None:
        raise search.refusal()
    return search.best


@dataclass
class _Search:
    """What was found so far. `kept_s` is how long a step takes that keeps everything."""

    solve: Solve
    budget_nbytes: int | None
    kept_s: float
    best: tuple[Posed, Plan] | None = None
    refusals: list[Infeasible] = field(default_factory=list)
    too_large: list[tuple[int, str]] = field(default_factory=list)

    def look_at(self, posed: Posed) -> None:
        try:
            plan = self.solve(posed.problem)
        except Infeasible as reason:
            self.refusals.append(reason)
            return
        if self.best is None or plan.step_time_s < self.best[1].step_time_s:
            self.best = posed, plan

    def is_good_enough(self, share: float) -> bool:
        return self.best is not None and self.best[1].step_time_s <= self.kept_s * (1 + share)

    def those_that_may_fit(self, forms: Iterable[Posed]) -> Iterator[Posed]:
        for posed in forms:
            least_nbytes = largest_step_nbytes(posed.problem)
            if self.budget_nbytes is None or least_nbytes <= self.budget_nbytes:
                yield posed
            else:
                self.too_large.append((least_nbytes, posed.problem.form))

    def refusal(self) -> Infeasible:
        """Of the form that needs least among those that were solved; with one that was not, if it needs less still."""
        refusal = min(self.refusals, key=lambda reason: reason.minimum_nbytes)
        least_nbytes, form = min(self.too_large, default=(refusal.minimum_nbytes, ""))
        if least_nbytes >= refusal.minimum_nbytes:
            return refusal
        words = f"With {form}, {format_nbytes(least_nbytes)} ({least_nbytes} bytes) and workspaces may do."
        return Infeasible(f"{refusal}\n{words}", minimum_nbytes=refusal.minimum_nbytes)
