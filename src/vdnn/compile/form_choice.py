"""Which form of a step is run: as it was traced, or with some of its ops split over the batch.

Enters: the traced step with its problem, and the other forms that `compile/forms/` offers. Leaves: a form and its plan.
The one idea: a form is one more candidate. The traced step is planned first; where it does not fit, or where keeping
the budget costs more than a little time, others are planned too and the fastest is taken. To measure what all ops of a
form take may last minutes, so forms are first compared in outline, by the roofline: one whose largest op is over the
budget is left out, a few of the others are planned, and only the best of them are priced by measuring. Of a step so
long that planning it takes many seconds, others are looked at only where it does not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from torch import fx

from vdnn.capture.lower import Lowered
from vdnn.compile.forms import Form
from vdnn.errors import Infeasible
from vdnn.plan.model.bounds import largest_op_nbytes
from vdnn.plan.model.problem import Problem
from vdnn.plan.plan import Plan

WORTH_A_LOOK = 0.03
"""Share of the step time that a budget may cost before other forms are looked at."""

GOOD_ENOUGH = 0.01
"""Share of the step time that a form may cost for the search to end with it."""

MANY = 10_000
"""Ops from which on writing and planning a form takes ten seconds and more."""

MOST_SKETCHED = 5
"""Forms that are compared in outline at a time."""

MOST_PRICED = 2
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
    outlined_s: float,
) -> tuple[Posed, Plan]:
    """The fastest form within the budget; Infeasible with the least that any form needs when there is none.

    `pose` writes a form and prices it in outline, in which the traced step takes `outlined_s`; `price` finds out what
    its ops really take, and returns the same where the outline is all there is.
    """
    search = _Search(solve, traced.problem.budget_nbytes, sum(cost.seconds for cost in traced.problem.costs.ops))
    search.look_at(traced)
    is_settled = search.best is not None and len(traced.problem.graph) > MANY
    if not is_settled and not search.is_good_enough(WORTH_A_LOOK):
        for number, (posed, sketch) in enumerate(search.best_first(map(pose, offered), outlined_s), start=1):
            priced = price(posed)
            search.look_at(priced, sketch if priced is posed else None)
            if search.is_good_enough(GOOD_ENOUGH) or (search.best is not None and number >= MOST_PRICED):
                break
    if search.best is None and search.too_large:
        search.look_at(price(search.smallest()))  # for what it really needs
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
    refusals: list[tuple[str, Infeasible]] = field(default_factory=list)
    too_large: list[tuple[int, Posed]] = field(default_factory=list)

    def look_at(self, posed: Posed, plan: Plan | None = None) -> None:
        """`plan`: where it is known already."""
        try:
            plan = plan or self.solve(posed.problem)
        except Infeasible as reason:
            self.refusals.append((posed.problem.form, reason))
            return
        if self.best is None or plan.step_time_s < self.best[1].step_time_s:
            self.best = posed, plan

    def is_good_enough(self, share: float) -> bool:
        return self.best is not None and self.best[1].step_time_s <= self.kept_s * (1 + share)

    def best_first(self, forms: Iterable[Posed], outlined_s: float) -> Iterator[tuple[Posed, Plan]]:
        """Those that fit in outline: the best of a few, then the next few."""
        waiting = iter(forms)
        while sketched := list(islice(self._sketched(waiting, outlined_s), MOST_SKETCHED)):
            yield from sorted(sketched, key=lambda sketch: sketch[1].step_time_s)

    def _sketched(self, forms: Iterator[Posed], outlined_s: float) -> Iterator[tuple[Posed, Plan]]:
        """Planned in outline, up to one that costs next to nothing."""
        for posed in forms:
            least_nbytes = largest_op_nbytes(posed.problem)
            if self.budget_nbytes is not None and least_nbytes > self.budget_nbytes:
                self.too_large.append((least_nbytes, posed))
                continue
            try:
                plan = self.solve(posed.problem)
            except Infeasible as reason:
                self.too_large.append((reason.minimum_nbytes, posed))
                continue
            yield posed, plan
            if plan.step_time_s <= outlined_s * (1 + GOOD_ENOUGH):
                return

    def smallest(self) -> Posed:
        """Of the forms that do not even fit in outline."""
        return min(self.too_large, key=lambda found: found[0])[1]

    def refusal(self) -> Infeasible:
        """That of the form which needs least."""
        form, reason = min(self.refusals, key=lambda found: found[1].minimum_nbytes)
        if not form:
            return reason
        return Infeasible(f"{reason}\nThat is with the {form}.", minimum_nbytes=reason.minimum_nbytes)
