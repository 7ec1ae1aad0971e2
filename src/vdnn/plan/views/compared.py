"""One problem, many plans: every strategy side by side, and one strategy over a range of budgets.

Enters: a problem. Leaves: a `ComparedPlan` each, with figures, or with the reason why there is no plan. What a strategy
cannot do is a result here, not an error: its `Infeasible` says in the first line what it would need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from time import perf_counter

from vdnn.errors import Infeasible, InvalidInput
from vdnn.plan.auto import auto_strategy
from vdnn.plan.judge.validate import check
from vdnn.plan.model.problem import Problem
from vdnn.plan.plan import Plan
from vdnn.plan.strategy_table import STRATEGIES, solve_with_workspaces
from vdnn.plan.views.plan_figures import Figures, figures, keep_all

SHARES = (100, 75, 50, 35, 25)
"""Budgets of the Pareto table, in per cent of the keep-all peak; the smallest that can be met comes after them."""

SWEPT_STRATEGY = auto_strategy.STRATEGY.name
"""Who is asked when budgets are swept."""


@dataclass(frozen=True, slots=True)
class ComparedPlan:
    """What was asked for, and either its figures or why there are none. `minimum_nbytes`: what would be enough.

    `form` names the form of the step that the plan is for; empty: as it was traced.
    """

    strategy: str
    label: str
    budget_nbytes: int | None
    solve_s: float
    figures: Figures | None = None
    why_not: str = ""
    minimum_nbytes: int | None = None
    form: str = ""


def by_strategy(problem: Problem, strategies: Iterable[str] = tuple(STRATEGIES)) -> Iterator[ComparedPlan]:
    """A row per strategy, as they are solved."""
    oracle = keep_all(problem)
    for strategy in strategies:
        yield _row(strategy, strategy, problem.budget_nbytes, partial(_solved, problem, strategy), oracle)


def by_budget(
    problem: Problem, strategy: str, within: Callable[[int], Plan] | None = None, shares: Iterable[int] = SHARES
) -> Iterator[ComparedPlan]:
    """A row per share of the keep-all peak, and one for the least that can be met, to a hundredth of that peak.

    `within` plans for a budget where that takes more than this problem: a step has other forms, with other problems.
    """
    oracle = keep_all(problem)
    plan_within = within or (lambda budget_nbytes: _solved(replace(problem, budget_nbytes=budget_nbytes), strategy))

    def row(label: str, budget_nbytes: int) -> ComparedPlan:
        return _row(strategy, label, budget_nbytes, lambda: plan_within(budget_nbytes), oracle)

    found = []
    for share in shares:
        found.append(row(f"{share}%", int(Fraction(share, 100) * oracle.peak_nbytes)))
        yield found[-1]
    found.append(row("minimum", 0))
    yield _least(found, row, resolution_nbytes=max(1, oracle.peak_nbytes // 100))


def _least(found: list[ComparedPlan], row: Callable[[str, int], ComparedPlan], resolution_nbytes: int) -> ComparedPlan:
    """Bisect between the smallest budget that is met, or that was said to be enough, and the largest that is not."""
    enough = [r.budget_nbytes if r.figures else r.minimum_nbytes for r in found]
    known = min(nbytes for nbytes in enough if nbytes is not None)
    best = row("minimum", known)
    fails = max(
        (r.budget_nbytes or 0 for r in found if r.figures is None and (r.budget_nbytes or 0) < known), default=0
    )
    while best.figures is not None and (best.budget_nbytes or 0) - fails > resolution_nbytes:
        middle = row("minimum", ((best.budget_nbytes or 0) + fails) // 2)
        best, fails = (middle, fails) if middle.figures is not None else (best, middle.budget_nbytes or 0)
    return best


def _solved(problem: Problem, strategy: str) -> Plan:
    return check(solve_with_workspaces(problem, strategy))


def _row(strategy: str, label: str, budget_nbytes: int | None, solve: Callable[[], Plan], oracle: Plan) -> ComparedPlan:
    begin = perf_counter()
    row = ComparedPlan(strategy, label, budget_nbytes, 0.0)
    try:
        plan = solve()
    except Infeasible as reason:
        row = replace(row, why_not=_in_short(reason), minimum_nbytes=reason.minimum_nbytes)
        return replace(row, solve_s=perf_counter() - begin)
    except InvalidInput as reason:  # a strategy that is not for such a problem
        return replace(row, why_not=_in_short(reason), solve_s=perf_counter() - begin)
    took_s = perf_counter() - begin
    return replace(row, solve_s=took_s, figures=figures(plan, oracle), form=plan.problem.form)


def _in_short(reason: Exception) -> str:
    return str(reason).partition("\n")[0].rstrip(".:")
