"""One problem, many plans: every strategy side by side, and one strategy over a range of budgets.

Enters: a problem. Leaves: `Row`s with figures, or with the reason why there is no plan. What a strategy cannot do is a
result here, not an error: its `Infeasible` says in the first line what it would need.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from time import perf_counter

from vdnn.errors import Infeasible, InvalidInput
from vdnn.plan.figures import Figures, figures, keep_all
from vdnn.plan.plan import Plan
from vdnn.plan.problem import Problem
from vdnn.plan.strategies import STRATEGIES
from vdnn.plan.validate import check
from vdnn.plan.workspaces import solve_with_workspaces

SHARES = (100, 75, 50, 35, 25)
"""Budgets of the Pareto table, in per cent of the keep-all peak; the smallest that can be met comes after them."""


@dataclass(frozen=True, slots=True)
class Row:
    """What was asked for, and either its figures or why there are none. `minimum_nbytes`: what would be enough."""

    strategy: str
    label: str
    budget_nbytes: int | None
    solve_s: float
    figures: Figures | None = None
    why_not: str = ""
    minimum_nbytes: int | None = None


def best_strategy() -> str:
    """Who is asked when budgets are swept: the optimiser, or the strategy that a budget alone stands for."""
    return "auto" if "auto" in STRATEGIES else "offload"


def by_strategy(problem: Problem, strategies: Iterable[str] = tuple(STRATEGIES)) -> Iterator[Row]:
    """A row per strategy, as they are solved."""
    oracle = keep_all(problem)
    for strategy in strategies:
        yield _row(problem, strategy, strategy, oracle)


def by_budget(problem: Problem, strategy: str, shares: Iterable[int] = SHARES) -> Iterator[Row]:
    """A row per share of the keep-all peak, and one for the smallest budget that the strategy meets."""
    oracle = keep_all(problem)
    for share in shares:
        budget_nbytes = int(Fraction(share, 100) * oracle.peak_nbytes)
        yield _row(replace(problem, budget_nbytes=budget_nbytes), strategy, f"{share}%", oracle)
    asked = _row(replace(problem, budget_nbytes=0), strategy, "minimum", oracle)
    if asked.minimum_nbytes is None:
        yield asked
    else:
        yield _row(replace(problem, budget_nbytes=asked.minimum_nbytes), strategy, "minimum", oracle)


def _row(problem: Problem, strategy: str, label: str, oracle: Plan) -> Row:
    begin = perf_counter()
    row = Row(strategy, label, problem.budget_nbytes, 0.0)
    try:
        plan = check(solve_with_workspaces(problem, strategy))
    except Infeasible as reason:
        row = replace(row, why_not=_in_short(reason), minimum_nbytes=reason.minimum_nbytes)
        return replace(row, solve_s=perf_counter() - begin)
    except InvalidInput as reason:  # a strategy that is not for such a problem
        return replace(row, why_not=_in_short(reason), solve_s=perf_counter() - begin)
    return replace(row, solve_s=perf_counter() - begin, figures=figures(plan, oracle))


def _in_short(reason: Exception) -> str:
    return str(reason).partition("\n")[0].rstrip(".:")
