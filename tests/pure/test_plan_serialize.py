"""A plan survives the trip through a file, and a file that is no plan is refused with the way out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pure import graphs
from vdnn.errors import InvalidFile
from vdnn.plan import (
    Offload,
    from_json,
    load,
    save,
    simulate,
    solve,
    to_json,
    violations,
)


def test_a_saved_plan_loads_as_an_equal_plan(tmp_path: Path) -> None:
    plan = graphs.every_action()
    assert load(save(plan, tmp_path / "plan.json")) == plan


def test_a_plan_saves_itself_and_says_where(tmp_path: Path) -> None:
    assert graphs.every_action().save(str(tmp_path / "plan.json")) == tmp_path / "plan.json"


def test_traits_needs_and_aliases_survive() -> None:
    plan = graphs.plan(graphs.in_place_chain())
    assert from_json(json.loads(json.dumps(to_json(plan)))) == plan


@pytest.mark.parametrize("allowed", [{}, {"lossy": "fp8", "density": 0.4}])
def test_what_encodings_mean_survives(allowed: dict[str, Any]) -> None:
    """Details of reads and encodings, who can read an encoding, alphabets, what may be lost, and the density planned
    for."""
    plan = solve(graphs.problem(graphs.layered(), **allowed), "gist")
    again = from_json(json.loads(json.dumps(to_json(plan), allow_nan=False)))
    assert again == plan
    assert violations(again) == []


def test_a_plan_without_encodings_is_the_document_it_was_before_there_were_any() -> None:
    document = to_json(graphs.plan(graphs.chain(3)))
    assert not {"lossy", "density"} & set(document)
    assert not {"exact_reads", "alphabets"} & set(document["graph"])


def test_a_loaded_plan_simulates_to_the_same_figures() -> None:
    plan = graphs.plan(graphs.chain(4), {"a1": Offload("disk", 1, 5, 6)})
    again = simulate(from_json(to_json(plan)))
    assert (again.peak_nbytes, again.duration_s) == (simulate(plan).peak_nbytes, simulate(plan).duration_s)


def test_the_document_says_what_it_is() -> None:
    document = to_json(graphs.every_action())
    assert (document["schema"], document["version"]) == ("vdnn.plan", 1)


def test_repeated_words_are_written_once() -> None:
    document = to_json(graphs.plan(graphs.chain(50)))
    assert json.dumps(document).count('"linear_backward"') == 1


@pytest.mark.parametrize("document", [{}, {"schema": "vdnn.report", "version": 1}, [], "plan", None])
def test_another_schema_is_refused(document: object) -> None:
    with pytest.raises(InvalidFile, match=r"a plan's is 'vdnn\.plan'"):
        from_json(document)  # type: ignore[arg-type]


def test_another_version_is_refused_with_the_way_out() -> None:
    with pytest.raises(InvalidFile, match=r"version 2 of vdnn\.plan; this vdnn reads version 1.*Make the plan again"):
        from_json(to_json(graphs.every_action()) | {"version": 2})


@pytest.mark.parametrize(
    "damage",
    [
        {"graph": None},
        {"words": []},
        {"decisions": [{"storage": 1, "action": {"kind": "teleport"}, "reason": ""}]},
        {"decisions": [{"storage": 1, "action": {"kind": "recompute", "leave": 4, "back": 2}, "reason": ""}]},
        {"costs": {"columns": [], "rows": []}},
        {"hardware": {"name": "half a machine"}},
    ],
)
def test_broken_contents_are_refused(damage: dict[str, object]) -> None:
    with pytest.raises(InvalidFile, match="contents are broken"):
        from_json(to_json(graphs.every_action()) | damage)


@pytest.mark.parametrize("contents", [b"", b"{half a docu", b"\xff\xfe\x00"])
def test_a_file_that_is_not_json_is_refused_by_name(tmp_path: Path, contents: bytes) -> None:
    (tmp_path / "plan.json").write_bytes(contents)
    with pytest.raises(InvalidFile, match=r"plan\.json does not hold a plan"):
        load(tmp_path / "plan.json")
