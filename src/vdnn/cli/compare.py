"""`vdnn compare`: every strategy on one training step, and the best of them over a range of budgets."""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import asdict
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from vdnn.cli.answer import Answer
from vdnn.cli.options import (
    Batch,
    Budget,
    ChannelsLast,
    Costs,
    Debug,
    Device,
    ImageSize,
    Inexact,
    Json,
    Lossy,
    Model,
    StateOf,
)
from vdnn.cli.planning import Asked, capture
from vdnn.plan.compared import Row, best_strategy, by_budget, by_strategy
from vdnn.plan.figures import Figures, figures, keep_all
from vdnn.report.text import quiet_table, sections, title
from vdnn.units import format_nbytes, format_seconds

COLUMNS = (">within", ">peak", ">saved", ">average", ">step time", ">loss", ">moved", ">FLOP again")
ROOMY = frozenset({">within", ">saved", ">average"})  # what only a wide terminal shows
WIDE = 104


def compare(
    model: Model,
    batch: Batch,
    budget: Budget = None,
    device: Device = None,
    lossy: Lossy = None,
    inexact: Inexact = False,
    optimizer: StateOf = None,
    costs: Costs = "roofline",
    image_size: ImageSize = None,
    channels_last: ChannelsLast = False,
    as_json: Json = False,
    debug: Debug = False,
) -> Answer:
    """Compare all strategies on one training step, then budgets from 100 % down to the least: memory against time."""
    asked = capture(
        model,
        batch,
        image_size=image_size,
        channels_last=channels_last,
        shows_progress=not as_json,
        budget=budget,
        device=device,
        strategy="gist" if lossy is not None else None,  # somebody who rounds; which strategies do is theirs to say
        lossy=lossy,
        exact=not inexact,
        optimizer=optimizer,
        costs=costs,
    )
    strategies, budgets = _solved(asked, shows_progress=not as_json)
    return Answer(_record(asked, strategies, budgets), lambda width: _view(asked, strategies, budgets, width))


def _solved(asked: Asked, shows_progress: bool) -> tuple[list[Row], list[Row]]:
    console = Console(stderr=True, quiet=not shows_progress)
    strategies: list[Row] = []
    budgets: list[Row] = []
    with console.status("Planning") as status:
        for row in by_strategy(asked.problem):
            status.update(f"Planning: {row.strategy} took {format_seconds(row.solve_s)}")
            strategies.append(row)
        for row in by_budget(asked.problem, best_strategy()):
            status.update(f"Planning: {row.strategy} within {row.label} took {format_seconds(row.solve_s)}")
            budgets.append(row)
    return strategies, budgets


def _record(asked: Asked, strategies: Iterable[Row], budgets: Iterable[Row]) -> dict[str, Any]:
    oracle = keep_all(asked.problem)
    return {
        "schema": "vdnn.comparison",
        "version": 1,
        "model": asked.name,
        "hardware": asked.problem.hardware.name,
        "budget_nbytes": asked.problem.budget_nbytes,
        "num_steps": len(asked.problem.graph),
        "keep_all": asdict(figures(oracle, oracle)),
        "strategies": [asdict(row) for row in strategies],
        "budgets": [asdict(row) for row in budgets],
    }


def _view(asked: Asked, strategies: list[Row], budgets: list[Row], width: int) -> RenderableType:
    budget_nbytes = asked.problem.budget_nbytes
    bound = "no budget" if budget_nbytes is None else f"budget {format_nbytes(budget_nbytes)}"
    who = budgets[0].strategy if budgets else best_strategy()
    return sections(
        Group(
            title(f"{asked.name} on {asked.problem.hardware.name}, {bound}"),
            Text(
                "Saved, and loss of time, are against keep-all. Moved counts both ways."
                " ≥ stands before the least that a strategy needs."
            ),
        ),
        _table("strategy", strategies, width, without={">within"}),
        title(f"{who} within less and less, in shares of keep-all's peak"),
        _table("budget", budgets, width),
    )


def _table(first: str, rows: Iterable[Row], width: int, without: Set[str] = frozenset()) -> Table:
    """A row per plan, or what there would have to be for one."""
    hidden = without if width >= WIDE else without | ROOMY
    columns = [column for column in COLUMNS if column not in hidden]
    table = quiet_table(first, *columns)
    for row in rows:
        cells = _cells(row)
        table.add_row(row.label, *(cells[column] for column in columns))
    return table


def _cells(row: Row) -> dict[str, str]:
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
