"""`vdnn reproduce`: every paper quickly, as text and as JSON; captured networks scale with their batch."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from rich.console import Console

from larger import all_but_larger
from vdnn.cli import main
from vdnn.cli.answer import Answer
from vdnn.cli.captured_networks import problem_of, relu_densities
from vdnn.cli.reproduce import PAPERS, reproduce
from vdnn.papers.batches import Scaled
from vdnn.papers.paper_table import Certainty

FAST = ("vdnn", "hybrid")


@cache
def answer(paper: str) -> Answer:
    """One computation for all claims about it."""
    return reproduce([paper], quick=True)


def as_json(record: Any) -> Any:
    return json.loads(json.dumps(record))


@pytest.mark.parametrize("paper", all_but_larger(FAST, PAPERS))
def test_every_row_of_a_paper_has_its_certainty_in_words(paper: str) -> None:
    (only,) = answer(paper).record["papers"]
    rows = [row for table in only["tables"] for row in table["rows"]]
    assert {row["certainty"] for row in rows} <= {str(certainty) for certainty in Certainty}
    assert any(figure["value"] is not None for row in rows for figure in row["ours"].values())


@pytest.mark.parametrize("paper", FAST)
def test_tables_fit_their_terminal_whole(paper: str) -> None:
    for width in (80, 120):
        console = Console(width=width, highlight=False, no_color=True)
        with console.capture() as capture:
            console.print(answer(paper).view(width))
        assert max(map(len, capture.get().splitlines())) <= width
        assert "…" not in capture.get()


def test_several_papers_come_in_the_order_asked_for_each_with_its_own_tables(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["reproduce", "hybrid", "vdnn", "--quick", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["schema"], found["quick"]) == ("vdnn.reproduce", True)
    assert found["papers"] == [part for paper in ("hybrid", "vdnn") for part in as_json(answer(paper).record["papers"])]


def test_a_paper_that_is_not_there_is_refused_with_those_that_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "checkmate"]) == 2
    assert "'checkmate' is none of vdnn, superneurons, gist, hybrid" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["alexnet-lrn", "nin"])
def test_a_captured_step_at_any_batch_is_the_one_that_follows_from_two(name: str) -> None:
    one, other, third = (problem_of(name, batch, "k40c").graph for batch in (8, 9, 20))
    assert Scaled(8, one, other).at(20) == third


def test_about_half_of_fresh_activations_are_zero() -> None:
    densities = relu_densities("alexnet")
    assert len(densities) == 7
    assert all(0.3 < density < 0.7 for density in densities)
