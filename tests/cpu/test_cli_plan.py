"""`vdnn plan`: the price of a budget beside keeping everything, and plans that are saved and followed again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cpu.command_line import DEEP, ON_TITAN_X, answer, place_nets, refusal, text
from vdnn.plan import load

PLAN = ("plan", DEEP, "--batch", "16", *ON_TITAN_X)
WITHIN = ("--budget", "70%", "--strategy", "offload")
SHAPE = {
    "schema",
    "version",
    "model",
    "hardware",
    "budget_nbytes",
    "lossy",
    "num_steps",
    "form",
    "plan_s",
    "solve_s",
    "plan",
    "keep_all",
    "arena",
    "bound_s",
    "note",
    "peak_step",
    "peak_nbytes_by_role",
    "residents",
    "versions",
    "saved_as",
}
FIGURES = {
    "strategy",
    "peak_nbytes",
    "average_nbytes",
    "step_time_s",
    "stall_s",
    "moved_nbytes",
    "recomputed_flops",
    "num_replays",
    "actions",
    "saved_nbytes",
    "loss",
}


@pytest.fixture(autouse=True)
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place_nets(tmp_path, monkeypatch)


def test_the_json_keeps_its_shape(capsys: pytest.CaptureFixture[str]) -> None:
    record = answer(capsys, *PLAN, *WITHIN)
    assert (record["schema"], record["version"]) == ("vdnn.plan-summary", 1)
    assert set(record) == SHAPE
    assert set(record["plan"]) == set(record["keep_all"]) == FIGURES
    assert 0 < record["arena"]["peak_nbytes"] <= record["arena"]["nbytes"] < record["plan"]["peak_nbytes"]
    assert record["arena"]["waste"] == record["arena"]["nbytes"] / record["arena"]["peak_nbytes"] <= 1.01


def test_solving_is_a_part_of_planning(capsys: pytest.CaptureFixture[str]) -> None:
    record = answer(capsys, *PLAN, *WITHIN)
    assert 0 < record["solve_s"] < record["plan_s"]


def test_a_plan_stays_within_its_budget_and_keep_all_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    record = answer(capsys, *PLAN, *WITHIN)
    assert record["plan"]["peak_nbytes"] <= record["budget_nbytes"] < record["keep_all"]["peak_nbytes"]


def test_the_loss_is_the_time_beyond_keep_alls(capsys: pytest.CaptureFixture[str]) -> None:
    record = answer(capsys, *PLAN, *WITHIN)
    own, kept = record["plan"]["step_time_s"], record["keep_all"]["step_time_s"]
    assert record["plan"]["loss"] == pytest.approx(own / kept - 1)
    assert record["keep_all"]["loss"] == 0


def test_what_moves_is_counted_out_and_back(capsys: pytest.CaptureFixture[str]) -> None:
    record = answer(capsys, *PLAN, "--strategy", "vdnn-all")
    assert record["plan"]["actions"].keys() == {"offload"}
    assert record["plan"]["moved_nbytes"] > record["plan"]["saved_nbytes"] > 0


def test_recomputing_moves_nothing_and_counts_its_arithmetic(capsys: pytest.CaptureFixture[str]) -> None:
    figures = answer(capsys, *PLAN, "--strategy", "checkpoint-sqrt")["plan"]
    assert figures["moved_nbytes"] == 0
    assert figures["num_replays"] > 0
    assert figures["recomputed_flops"] > 0


@pytest.mark.parametrize("columns", [80, 120])
def test_the_screen_shows_the_price_and_fits_the_terminal(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = text(capsys, monkeypatch, columns, *PLAN, *WITHIN)
    assert "keep-all, the oracle" in shown
    assert "Decisions: " in shown
    assert "The peak is at " in shown
    assert max(len(line.rstrip()) for line in shown.splitlines()) <= columns


def test_a_saved_plan_loads_in_python(capsys: pytest.CaptureFixture[str]) -> None:
    record = answer(capsys, *PLAN, *WITHIN, "--save", "deep.json")
    plan = load("deep.json")
    assert record["saved_as"] == "deep.json"
    assert (plan.strategy, plan.peak_nbytes) == ("offload", record["plan"]["peak_nbytes"])


def test_a_saved_plan_is_taken_again_for_the_same_model(capsys: pytest.CaptureFixture[str]) -> None:
    saved = answer(capsys, *PLAN, *WITHIN, "--save", "deep.json")
    loaded = answer(capsys, *PLAN, "--load", "deep.json")
    assert loaded["plan"] == saved["plan"]
    assert loaded["budget_nbytes"] == saved["budget_nbytes"]


REFUSED = {
    "another batch": (("plan", DEEP, "--batch", "8", *ON_TITAN_X), "is 16x3x18x18 float32 in the plan and 8x3x18x18"),
    "another model": (("plan", "my_nets:wide", "--batch", "16", *ON_TITAN_X), "in the plan and"),
    "another strategy": ((*PLAN, "--strategy", "gist"), "a saved plan has its own strategy"),
    "too small a budget": ((*PLAN, "--budget", "1MiB"), "the budget is 1.00 MiB, but op"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_saved_plan_that_does_not_fit_says_what_differs(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer(capsys, *PLAN, *WITHIN, "--save", "deep.json")
    arguments, words = REFUSED[case]
    assert words in refusal(capsys, *arguments, "--load", "deep.json")


def test_a_plan_file_that_is_not_there_is_one_clear_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert "cannot read a plan from 'missing.json'" in refusal(capsys, *PLAN, "--load", "missing.json")


def test_a_file_that_is_no_plan_is_one_clear_error(capsys: pytest.CaptureFixture[str]) -> None:
    Path("report.json").write_text(json.dumps({"schema": "vdnn.report", "version": 1}))
    assert "this is not a saved plan" in refusal(capsys, *PLAN, "--load", "report.json")


def test_a_budget_that_nothing_fits_says_which_would(capsys: pytest.CaptureFixture[str]) -> None:
    assert "Raise budget to at least" in refusal(capsys, *PLAN, "--strategy", "offload", "--budget", "10KiB")


def test_train_follows_a_saved_plan_bit_for_bit(capsys: pytest.CaptureFixture[str]) -> None:
    """Saved from a whole capture, followed by one through Dynamo, whose inputs come in another order."""
    plan = answer(capsys, "plan", DEEP, "--batch", "4", "--strategy", "recompute-memory", "--save", "deep.json")
    run = answer(capsys, "train", DEEP, "--batch", "4", "--steps", "2", "--plan", "deep.json", "--verify")
    assert run["verified"]["equal"]
    assert run["report"]["strategy"] == "recompute-memory"
    assert run["report"]["totals"]["measured"]["peak_nbytes"] <= plan["plan"]["peak_nbytes"]


def test_train_refuses_a_plan_of_another_batch(capsys: pytest.CaptureFixture[str]) -> None:
    answer(capsys, "plan", DEEP, "--batch", "4", "--strategy", "recompute-memory", "--save", "deep.json")
    assert "in the plan and" in refusal(capsys, "train", DEEP, "--batch", "2", "--plan", "deep.json")
