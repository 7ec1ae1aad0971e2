"""`vdnn compare`: every strategy on one training step, and the best of them over a range of budgets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import Any, Unpack

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from vdnn.cli.answer import Answer
from vdnn.cli.arguments import IMAGES, PLANNING, BatchSize, ImageOptions, ModelName, takes
from vdnn.cli.planning import CapturedStep, ask, measuring
from vdnn.options import Options, PlanOptions
from vdnn.plan.model.problem import Problem
from vdnn.plan.plan import Plan
from vdnn.plan.views.compared import SWEPT_STRATEGY, ComparedPlan, by_budget, by_strategy
from vdnn.plan.views.plan_figures import Figures, figures, keep_all
from vdnn.report.text import console, quiet_table, sections, title
from vdnn.units import Nbytes, format_nbytes, format_seconds

COLUMNS = (">within", ">peak", ">saved", ">average", ">step time", ">loss", ">moved", ">FLOP again")
WIDE_ONLY = frozenset({">within", ">saved", ">average"})  # what only a wide terminal shows
WIDE_COLUMNS = 104  # a terminal of so many has room for every column


@takes(*(name for name in PLANNING if name != "strategy"), *IMAGES, after="batch", costs="roofline")
def compare(
    model: ModelName, batch: BatchSize, images: ImageOptions, as_json: bool, **options: Unpack[PlanOptions]
) -> Answer:
    """Compare all strategies on one training step, then budgets from 100 % down to the least: memory against time."""
    with ExitStack() as stack:
        with measuring(enabled=not as_json) as progress:
            asked = ask(model, batch, images, Options(**options), progress)
            captured = stack.enter_context(asked.captured())
            problem = captured.problem()
        rows = _solved(captured, problem, shows_progress=not as_json)
    return Answer(_record(asked.name, problem, *rows), lambda width: _view(asked.name, problem, *rows, width))


def _solved(
    captured: CapturedStep, problem: Problem, shows_progress: bool
) -> tuple[list[ComparedPlan], list[ComparedPlan]]:
    """The rows of both tables. Budgets are planned as `vdnn.virtualize` does, in other forms of the step too."""
    strategies: list[ComparedPlan] = []
    budgets: list[ComparedPlan] = []
    within: Callable[[int], Plan] = lambda n: captured.plan(budget=Nbytes(n), strategy=SWEPT_STRATEGY)  # noqa: E731
    with console(stderr=True, quiet=not shows_progress).status("Planning") as status:
        for row in by_strategy(problem):
            status.update(f"Planning: {row.strategy} took {format_seconds(row.solve_s)}")
            strategies.append(row)
        for row in by_budget(problem, SWEPT_STRATEGY, within):
            status.update(f"Planning: {row.strategy} within {row.label} took {format_seconds(row.solve_s)}")
            budgets.append(row)
    return strategies, [_corrected(row, budgets[-1]) for row in budgets]


def _corrected(row: ComparedPlan, least: ComparedPlan) -> ComparedPlan:
    """What a budget would have to be is what the search for the least has found, which knows every form."""
    return row if row.figures is not None or least.figures is None else replace(row, minimum_nbytes=least.budget_nbytes)


def _record(
    name: str, problem: Problem, strategies: Iterable[ComparedPlan], budgets: Iterable[ComparedPlan]
) -> dict[str, Any]:
    oracle = keep_all(problem)
    return {
        "schema": "vdnn.comparison",
        "version": 1,
        "model": name,
        "hardware": problem.hardware.name,
        "budget_nbytes": problem.budget_nbytes,
        "num_steps": len(problem.graph),
        "keep_all": asdict(figures(oracle, oracle)),
        "strategies": [asdict(row) for row in strategies],
        "budgets": [asdict(row) for row in budgets],
    }


def _view(
    name: str, problem: Problem, strategies: list[ComparedPlan], budgets: list[ComparedPlan], width: int
) -> RenderableType:
    budget_nbytes = problem.budget_nbytes
    bound = "no budget" if budget_nbytes is None else f"budget {format_nbytes(budget_nbytes)}"
    who = budgets[0].strategy if budgets else SWEPT_STRATEGY
    return sections(
        Group(
            title(f"{name} on {problem.hardware.name}, {bound}"),
            Text(
                "Saved, and loss of time, are against keep-all. Moved counts both ways."
                " ≥ stands before the least that a strategy needs."
            ),
        ),
        _table("strategy", strategies, width, without={">within"}),
        title(f"{who} within less and less, in shares of keep-all's peak"),
        _table("budget", budgets, width),
        *_forms(budgets),
    )


def _forms(budgets: Iterable[ComparedPlan]) -> list[Text]:
    """Where the step is not run as it was traced."""
    said = [f"Within {row.label} the step is run in another form: {row.form}." for row in budgets if row.form]
    return [Text("\n".join(said))] if said else []


def _table(first: str, rows: Iterable[ComparedPlan], width: int, without: Set[str] = frozenset()) -> Table:
    """A row per plan, or what there would have to be for one."""
    hidden = without if width >= WIDE_COLUMNS else without | WIDE_ONLY
    columns = [column for column in COLUMNS if column not in hidden]
    table = quiet_table(first, *columns)
    for row in rows:
        cells = _cells(row)
        table.add_row(row.label, *(cells[column] for column in columns))
    return table


def _cells(row: ComparedPlan) -> dict[str, str]:
    within = {">within": "-" if row.budget_nbytes is None else format_nbytes(row.budget_nbytes)}
    if row.figures is None:
        needs = "cannot" if row.minimum_nbytes is None else f"≥ {format_nbytes(row.minimum_nbytes)}"
        return dict.fromkeys(COLUMNS, "") | within | {">peak": needs}
    return within | _of_plan(row.figures)


def _of_plan(found: Figures) -> dict[str, str]:
    kept_nbytes = found.peak_nbytes + found.saved_nbytes
    return {
        ">peak": format_nbytes(found.peak_nbytes),
        ">saved": f"{found.saved_nbytes / max(kept_nbytes, 1):.0%}",
        ">average": format_nbytes(found.average_nbytes),
        ">step time": format_seconds(found.step_time_s),
        ">loss": f"{found.loss:.1%}",
        ">moved": format_nbytes(found.moved_nbytes) if found.moved_nbytes else "-",
        ">FLOP again": count_words(found.recomputed_flops) if found.num_replays else "-",
    }


def count_words(count: float) -> str:
    """Three places and a letter: 512, 4.1 M, 2.15 T."""
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.3g} {letter}"
    return f"{count:.0f}"
