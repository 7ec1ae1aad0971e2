"""Which form of a step is run: as it was traced, or with some of its ops split over the batch.

Enters: the traced step with its problem, and the other forms that `compile/forms/` offers. Leaves: a `PlannedStep`.
The one idea: a form is one more candidate. The traced step is planned first; where it does not fit, or where keeping
the budget costs more than a little time, others are planned too and the fastest is taken. To measure what all ops of a
form take may last minutes, so forms are first compared in outline, by the roofline: one whose largest op is over the
budget is left out, a few of the others are planned (one alone is not: there is nothing to compare it with), and only
the best of them are priced by measuring. Of a step so long that planning it takes many seconds, others are looked at
only where it does not fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, islice, tee
from time import perf_counter

from vdnn.compile.decide import decide
from vdnn.compile.estimate import AGAIN_VARIANTS_S, all_tried, estimate
from vdnn.compile.traced_step import FormProblem, PlannedStep, Precedent
from vdnn.cost.roofline import roofline
from vdnn.cost.tried import Trials
from vdnn.errors import ForeignPlan, Infeasible
from vdnn.options import Options
from vdnn.plan.files.saved import opened
from vdnn.plan.model.bounds import largest_op_nbytes
from vdnn.plan.model.problem import Problem
from vdnn.plan.plan import Plan
from vdnn.plan.planner import Planner
from vdnn.plan.shared.account import tensors_nbytes
from vdnn.plan.strategy_table import strategy_named

TRACED = ""
"""The name of the form that was traced."""

WORTH_A_LOOK = 0.03
"""Share of the step time that a budget may cost before other forms are looked at."""

GOOD_ENOUGH = 0.01
"""Share of the step time that a form may cost for the search to end with it."""

LONG_STEP_NUM_OPS = 10_000
"""Ops from which on writing and planning a form takes ten seconds and more."""

MOST_SKETCHED = 5
"""Forms that are compared in outline at a time."""

MOST_PRICED = 2
"""Forms that are priced and solved at most, once one of them fits."""


def choose_form(
    traced: FormProblem,
    others: Iterable[FormProblem],
    options: Options,
    planner: Planner,
    precedent: Precedent | None = None,
) -> PlannedStep:
    """The fastest form within the budget; Infeasible with the least that any form needs when there is none. Where the
    form that was chosen for another shape fits, it is that one.

    `others` are priced in outline, and made only when they are looked at.
    """
    kept_s = sum(cost.seconds for cost in traced.problem.costs.ops)
    search = _Search(options, planner, traced.problem.budget_nbytes, kept_s)
    if precedent is not None:
        waiting, others = tee(others)
        form = _as_before(traced, waiting, precedent, options)
        if form is not None:
            search.look_at(form, is_last=False)
        if search.best is not None:
            return PlannedStep(*search.best, search.decide_s)
    search.look_at(traced)
    is_settled = search.best is not None and len(traced.problem.graph) > LONG_STEP_NUM_OPS
    if not is_settled and not search.is_good_enough(WORTH_A_LOOK):
        outlined_s = seconds_in_outline(traced, options)
        for number, (form, sketch) in enumerate(search.best_first(others, outlined_s), start=1):
            priced = price(form, options)
            search.look_at(priced, sketch if priced is form else None)
            if search.is_good_enough(GOOD_ENOUGH) or (search.best is not None and number >= MOST_PRICED):
                break
    if search.best is None and search.too_large:
        search.look_at(price(search.smallest(), options))  # for what it really needs
    if search.best is None:
        raise _with_chunks(search.refusal(), options)
    return PlannedStep(*search.best, search.decide_s)


def _as_before(
    traced: FormProblem, others: Iterable[FormProblem], precedent: Precedent, options: Options
) -> FormProblem | None:
    """The form that was chosen for another shape, priced; None where it is not offered."""
    if precedent.form == TRACED:
        return traced
    form = next((form for form in others if form.problem.form == precedent.form), None)
    return None if form is None else price(form, options, precedent.trials.get(precedent.form))


def follow_saved_plan(
    traced: FormProblem, others: Iterable[FormProblem], options: Options, planner: Planner
) -> PlannedStep:
    """The saved plan, in the form that it was made for."""
    assert options.plan is not None, "no saved plan is to be followed"
    wanted = opened(options.plan).problem.form
    form = price(_named(wanted, others), options) if wanted else traced
    begin = perf_counter()
    return PlannedStep(form, decide(form.problem, options, planner), perf_counter() - begin)


def price(form: FormProblem, options: Options, like: Trials | None = None) -> FormProblem:
    """With what its ops really take; the same where the outline is all there is. `like`: at another shape."""
    if options.chosen_costs == "roofline":
        return form
    variants_s = 0.0 if like is None else AGAIN_VARIANTS_S
    around, known_nbytes = form.problem.surroundings, tensors_nbytes(form.problem)
    found = estimate(form.lowered, options, around, variants_s=variants_s, like=like, granted_nbytes=known_nbytes)
    return replace(form, problem=replace(form.problem, costs=found.costs, variants=found.variants), trials=found.trials)


def more_tried(form: FormProblem, options: Options) -> FormProblem | None:
    """With all ways of computing its ops; None where they are known already. Ops that are larger than what the budget
    leaves beside parameters and inputs are run only now, in as much room as the budget is: the way out is a refusal."""
    trials, budget_nbytes = form.trials, form.problem.budget_nbytes
    if trials is None or trials.is_exhausted or budget_nbytes is None:
        return None
    found = all_tried(trials, form.lowered.graph, roofline(form.lowered.graph, options.machine), budget_nbytes)
    problem = replace(form.problem, costs=found.costs, variants=found.variants)
    return replace(form, problem=problem, trials=found.trials)


def seconds_in_outline(form: FormProblem, options: Options) -> float:
    """What its ops take by the roofline, one after the other."""
    return sum(cost.seconds for cost in roofline(form.lowered.graph, options.machine).ops)


def _named(wanted: str, others: Iterable[FormProblem]) -> FormProblem:
    found = next((form for form in others if form.problem.form == wanted), None)
    if found is None:
        raise ForeignPlan(
            f"the plan is for the step in another form ({wanted}), which is not offered here: forms in chunks change"
            " the last bits, so they need exact=False, and not every model has them. Pass exact=False, or plan again."
        )
    return found


def _with_chunks(reason: Infeasible, options: Options) -> Infeasible:
    """The same, with what giving up the last bits would allow, where that was not tried."""
    if not options.exact or not strategy_named(options.chosen_strategy).tries_forms:
        return reason
    words = "exact=False (--inexact) may need less: large ops, or the whole step, then run in chunks of the batch."
    return Infeasible(f"{reason}\n{words}", minimum_nbytes=reason.minimum_nbytes)


@dataclass
class _Search:
    """What was found so far. `kept_s` is how long a step takes that keeps everything."""

    options: Options
    planner: Planner
    budget_nbytes: int | None
    kept_s: float
    best: tuple[FormProblem, Plan] | None = None
    refusals: list[tuple[str, Infeasible]] = field(default_factory=list)
    too_large: list[tuple[int, FormProblem]] = field(default_factory=list)
    decide_s: float = 0.0

    def decided(self, problem: Problem) -> Plan:
        begin = perf_counter()
        try:
            return decide(problem, self.options, self.planner)
        finally:
            self.decide_s += perf_counter() - begin

    def look_at(self, form: FormProblem, plan: Plan | None = None, *, is_last: bool = True) -> None:
        """`plan`: where it is known already. What does not fit as far as it was tried is tried to the end, unless
        somebody looks further."""
        try:
            plan = plan or self.decided(form.problem)
        except Infeasible as reason:
            if not is_last:
                return None
            more = more_tried(form, self.options) if self.best is None else None
            if more is not None:
                return self.look_at(more)
            self.refusals.append((form.problem.form, reason))
            return None
        if self.best is None or plan.step_time_s < self.best[1].step_time_s:
            self.best = form, plan
        return None

    def is_good_enough(self, share: float) -> bool:
        return self.best is not None and self.best[1].step_time_s <= self.kept_s * (1 + share)

    def best_first(self, forms: Iterable[FormProblem], outlined_s: float) -> Iterator[tuple[FormProblem, Plan | None]]:
        """Those that fit in outline, each with its plan there: the best of a few, then the next few. The only one there
        is has nothing to be compared with."""
        waiting = iter(forms)
        first = list(islice(waiting, 2))
        if len(first) == 1 and not self._is_too_large(first[0]):
            yield first[0], None
            return
        waiting = chain(first, waiting)
        while sketched := list(islice(self._sketched(waiting, outlined_s), MOST_SKETCHED)):
            yield from sorted(sketched, key=lambda sketch: sketch[1].step_time_s)

    def _sketched(self, forms: Iterator[FormProblem], outlined_s: float) -> Iterator[tuple[FormProblem, Plan]]:
        """Planned in outline, up to one that costs next to nothing."""
        for form in forms:
            if self._is_too_large(form):
                continue
            try:
                plan = self.decided(form.problem)
            except Infeasible as reason:
                self.too_large.append((reason.minimum_nbytes, form))
                continue
            yield form, plan
            if plan.step_time_s <= outlined_s * (1 + GOOD_ENOUGH):
                return

    def _is_too_large(self, form: FormProblem) -> bool:
        """Whether one of its ops is over the budget by itself."""
        least_nbytes = largest_op_nbytes(form.problem)
        if self.budget_nbytes is None or least_nbytes <= self.budget_nbytes:
            return False
        self.too_large.append((least_nbytes, form))
        return True

    def smallest(self) -> FormProblem:
        """Of the forms that do not even fit in outline."""
        return min(self.too_large, key=lambda found: found[0])[1]

    def refusal(self) -> Infeasible:
        """That of the form which needs least."""
        form, reason = min(self.refusals, key=lambda found: found[1].minimum_nbytes)
        if not form:
            return reason
        return Infeasible(f"{reason}\nThat is with the {form}.", minimum_nbytes=reason.minimum_nbytes)
