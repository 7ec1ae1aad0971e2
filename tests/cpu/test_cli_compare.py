"""`vdnn compare`: a row per strategy, and the price of less and less memory."""

from __future__ import annotations

import json
from typing import Any

import pytest
from rich.console import Console

from cpu.command_line import DEEP, ON_TITAN_X, place_nets
from vdnn.cli.answer import Answer
from vdnn.cli.app import app
from vdnn.plan import STRATEGIES

COMPARE = ("compare", DEEP, "--batch", "16", *ON_TITAN_X)
ROW = {"strategy", "label", "budget_nbytes", "solve_s", "figures", "why_not", "minimum_nbytes", "form"}


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> Answer:
    """One comparison for all claims about it: solving everything takes seconds."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        place_nets(tmp_path_factory.mktemp("compare"), monkeypatch)
        return app(args=[*COMPARE, "--budget", "70%"], prog_name="vdnn", standalone_mode=False)


@pytest.fixture(scope="module")
def record(answer: Answer) -> Any:
    return json.loads(json.dumps(answer.record))


def test_the_json_keeps_its_shape(record: Any) -> None:
    assert (record["schema"], record["version"]) == ("vdnn.comparison", 1)
    assert all(set(row) == ROW for row in (*record["strategies"], *record["budgets"]))


def test_every_strategy_has_a_row(record: Any) -> None:
    assert [row["strategy"] for row in record["strategies"]] == list(STRATEGIES)


def test_a_strategy_that_cannot_says_what_it_needs(record: Any) -> None:
    rows = {row["strategy"]: row for row in record["strategies"]}
    assert rows["keep-all"]["figures"] is None
    assert rows["keep-all"]["why_not"].startswith("no 'keep-all' plan fits")
    assert rows["keep-all"]["minimum_nbytes"] > rows["keep-all"]["budget_nbytes"]


def test_a_strategy_that_can_stays_within_the_budget(record: Any) -> None:
    [row] = [row for row in record["strategies"] if row["strategy"] == "offload"]
    assert row["figures"]["peak_nbytes"] <= record["budget_nbytes"]


def test_the_budgets_end_in_the_least_that_can_be_met(record: Any) -> None:
    rows = record["budgets"]
    assert [row["label"] for row in rows] == ["100%", "75%", "50%", "35%", "25%", "minimum"]
    assert rows[-1]["figures"]["peak_nbytes"] <= rows[-1]["budget_nbytes"]


def test_what_is_below_the_minimum_needs_the_minimum(record: Any) -> None:
    *shares, minimum = record["budgets"]
    too_little = [row for row in shares if row["figures"] is None]
    assert all(row["minimum_nbytes"] == minimum["budget_nbytes"] > row["budget_nbytes"] for row in too_little)


def test_keeping_everything_costs_nothing_at_its_own_peak(record: Any) -> None:
    full = record["budgets"][0]["figures"]
    assert full["loss"] == pytest.approx(0, abs=1e-9)
    assert full["moved_nbytes"] == 0


@pytest.mark.parametrize("columns", [80, 120])
def test_both_tables_fit_the_terminal_with_a_line_per_row(columns: int, answer: Answer) -> None:
    console = Console(width=columns, highlight=False, no_color=True)
    with console.capture() as capture:
        console.print(answer.view(columns))
    lines = capture.get().splitlines()
    assert max(map(len, lines)) <= columns
    for label in (*STRATEGIES, "100%", "75%", "50%", "35%", "25%", "minimum"):
        assert len([line for line in lines if line.startswith(f"{label} ")]) >= 1, label
    assert len([line for line in lines if line.strip() in ("MiB", "GiB", "KiB")]) == 0  # no cell was broken
