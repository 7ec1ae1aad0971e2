"""`vdnn explain`: the plan as a program, from a model or from a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cpu.command_line import DEEP, ON_TITAN_X, answer, place_nets, refusal, text

EXPLAIN = ("explain", DEEP, "--batch", "16", *ON_TITAN_X)
LINE = {"step", "phase", "kind", "what", "module", "nbytes", "device_nbytes", "reason", "is_peak"}


@pytest.fixture(autouse=True)
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place_nets(tmp_path, monkeypatch)


def kinds(record: Any) -> set[str]:
    return {line["kind"] for line in record["lines"]}


def test_the_json_keeps_its_shape(capsys: pytest.CaptureFixture[str]) -> None:
    record = answer(capsys, *EXPLAIN, "--strategy", "vdnn-all")
    assert (record["schema"], record["version"]) == ("vdnn.explanation", 1)
    assert all(set(line) == LINE for line in record["lines"])


def test_without_all_only_what_happens_to_storages_and_the_peak_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    record = answer(capsys, *EXPLAIN, "--strategy", "vdnn-all")
    assert [line["is_peak"] for line in record["lines"] if line["kind"] == "run"] in ([], [True])
    assert {"leave", "fetch"} <= kinds(record)
    assert len(record["lines"]) < record["num_instructions"]


def test_with_all_every_instruction_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    record = answer(capsys, *EXPLAIN, "--strategy", "vdnn-all", "--all")
    assert len(record["lines"]) == record["num_instructions"]
    assert {"run", "send", "arrive"} <= kinds(record)


def test_the_bytes_on_the_device_reach_the_peak_once_marked(capsys: pytest.CaptureFixture[str]) -> None:
    record = answer(capsys, *EXPLAIN, "--strategy", "gist", "--all")
    marked = [line["device_nbytes"] for line in record["lines"] if line["is_peak"]]
    assert marked == [record["peak_nbytes"]] == [max(line["device_nbytes"] for line in record["lines"])]


@pytest.mark.parametrize("strategy", ["vdnn-all", "gist", "superneurons"])
def test_whatever_leaves_or_is_encoded_says_why(strategy: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = answer(capsys, *EXPLAIN, "--strategy", strategy)["lines"]
    going = [line for line in lines if line["kind"] in ("leave", "encode")]
    assert going
    assert all(line["reason"] for line in going)


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("strategy", ["vdnn-all", "gist", "superneurons"])
def test_the_screen_fits_the_terminal(
    columns: int, strategy: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = text(capsys, monkeypatch, columns, *EXPLAIN, "--strategy", strategy)
    assert "forward" in shown.splitlines()
    assert "<-- peak" in shown
    assert max(map(len, shown.splitlines())) <= columns


def test_a_saved_plan_is_told_as_the_model_is(capsys: pytest.CaptureFixture[str]) -> None:
    answer(capsys, "plan", *EXPLAIN[1:], "--strategy", "gist", "--save", "deep.json")
    assert answer(capsys, "explain", "deep.json")["lines"] == answer(capsys, *EXPLAIN, "--strategy", "gist")["lines"]


def test_a_saved_plan_takes_no_options_of_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    answer(capsys, "plan", *EXPLAIN[1:], "--save", "deep.json")
    typed = ["--batch", "2", "--budget", "50%", "--inexact", "--image-size", "8", "--channels-last"]
    said = refusal(capsys, "explain", "deep.json", *typed)
    assert "leave out --batch, --budget, --inexact, --image-size, --channels-last" in said


def test_a_model_without_a_batch_is_asked_for_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert "add --batch N" in refusal(capsys, "explain", "vgg16")


def test_a_plan_file_that_is_not_there_is_one_clear_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert "cannot read a plan from 'missing.json'" in refusal(capsys, "explain", "missing.json")
