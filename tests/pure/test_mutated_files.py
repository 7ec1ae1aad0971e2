"""Plans and records as strangers leave them: read within bounds, refused with the name of the field, or harmless.

What still loads is put through everything that reads plans: it holds and can be shown, or is refused in our words.
`tests/cpu/test_mutated_plans.py` trains what still fits.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
from report_samples import planned

from larger import larger
from pure import graphs
from pure.mutations import damaged, many, mutated
from vdnn.errors import InvalidFile, InvalidInput, VdnnError
from vdnn.plan import Plan, check, from_json, listing, load, solve, to_json
from vdnn.plan.files.saved import fitting_plan, opened
from vdnn.plan.model.findings import Density, GradientError
from vdnn.plan.views.explained import explained
from vdnn.reading import bounded_json
from vdnn.report.memory_profile import profile_memory
from vdnn.report.pieces import Piece, summarize
from vdnn.report.record import Report
from vdnn.report.text import as_text, profile_view


@cache
def plans() -> tuple[tuple[Plan, Any], ...]:
    """Of every action, and of every kind of strategy, each with its document."""
    made = (
        graphs.every_action(),
        solve(graphs.problem(graphs.chain(6), budget_nbytes=700), "offload"),
        solve(graphs.problem(graphs.layered()), "gist"),
        solve(graphs.problem(graphs.chain(6), budget_nbytes=620), "auto"),
    )
    return tuple((plan, json.loads(json.dumps(to_json(plan)))) for plan in made)


def put_to_use(plan: Plan, original: Plan) -> str:
    """Follow it where its original was made, then look at it from all sides; what came of it in a word."""
    try:
        fitting_plan(plan, original.problem)
        outcome = "fits"
    except VdnnError:
        outcome = "does not fit"
    try:
        check(plan)
    except VdnnError:
        return f"{outcome}, does not hold"
    for text in (str(plan), listing(plan), as_text(profile_view(profile_memory(plan))), explained(plan)):
        assert text
    return f"{outcome}, holds"


@pytest.mark.parametrize("count", [300, *larger(10_000)])
def test_a_mutated_plan_is_refused_in_our_words_or_can_be_used(count: int) -> None:
    outcomes: Counter[str] = Counter()
    for chance in many(count, seed=1):
        original, document = chance.choice(plans())
        changed = mutated(document, chance)
        try:
            plan = from_json(changed)
        except InvalidFile as refusal:
            is_clear = refusal.field and str(refusal).replace("\n", "").isprintable()
            outcomes["refused" if is_clear else f"unclear: {refusal}"] += 1
        else:
            outcomes[put_to_use(plan, original)] += 1
    assert not [words for words in outcomes if words.startswith("unclear")]
    # The trial is one of all parts: none of them is spared by another that refuses everything.
    assert min(outcomes[name] for name in ("refused", "fits, holds", "does not fit, holds")) > 0, outcomes
    assert outcomes["does not fit, does not hold"] > 0, outcomes


@pytest.mark.parametrize("count", [100, *larger(2_000)])
def test_a_file_of_damaged_bytes_is_refused_or_holds_a_plan(count: int, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    for chance in many(count, seed=2):
        original, document = chance.choice(plans())
        path.write_bytes(damaged(json.dumps(document).encode(), chance))
        try:
            plan = opened(path)
        except InvalidInput:
            continue
        put_to_use(plan, original)


@cache
def record() -> Any:
    plan = planned()
    found = summarize(plan.timeline, plan.problem.graph, [0.5])
    error, density = GradientError(0.1, float("inf"), "weight", "a note"), Density(0.5, 0.25, 1)
    pieces = (Piece("one", found, found, error, density, ("conv",)), Piece("two", found))
    return json.loads(Report("net", "gist", 4096, pieces, {"vdnn": "0.1.0"}).to_json())


@pytest.mark.parametrize("count", [200, *larger(3_000)])
def test_a_mutated_record_is_refused_with_its_field_or_is_a_report(count: int) -> None:
    num_read = 0
    for chance in many(count, seed=3):
        try:
            report = Report.from_json(json.dumps(mutated(record(), chance)))
        except InvalidFile:
            continue
        num_read += 1
        assert str(report)
        assert Report.from_json(report.to_json()) == report
    assert num_read > count // 20


def with_changed(*path: Any, value: Any) -> Any:
    document = json.loads(json.dumps(plans()[0][1]))
    inside = document
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = value
    return document


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("budget_nbytes",), "12GiB", r"budget_nbytes is a whole number from 0 .* not '12GiB'"),
        (("graph", "ops", "rows", 3, 0), 7, r"graph\.ops\.rows\[3\]\[0\] is text, not 7"),
        (("graph", "ops", "rows", 0, 2), 10**6, r"graph\.ops\.rows\[0\]\[2\] is the number of a phase, not 1000000"),
        (("graph", "values", "rows", 1), [], r"graph\.values\.rows\[1\] is a list of 4 things, not a list"),
        (("costs", "rows", 2, 0), 1e308, r"costs\.rows\[2\]\[0\] is a number from 0 to 1e\+30, not 1e\+308"),
        (("costs", "rows", 2, 0), -1.0, r"costs\.rows\[2\]\[0\] is a number from 0"),
        (("costs", "rows", 2, 0), float("nan"), r"costs\.rows\[2\]\[0\] is a number from 0 .* not nan"),
        (("costs", "rows", 2, 1), 2**62, r"graph\.storages, costs and decisions are \d+ bytes together"),
        (("hardware", "links", 0, 2), 0, r"hardware\.links\[0\] cannot be: link .* needs a positive bandwidth, not 0"),
        (("decisions", 0, "action", "kind"), "teleport", r"decisions\[0\]\.action\.kind is one of 'keep', 'drop'"),
        (("decisions", 1, "action", "back"), True, r"decisions\[1\]\.action\.back is a whole number .* not True"),
        (("decisions", 1, "surprise"), 1, r"decisions\[1\]\.surprise is no field here"),
        (("made_with",), [], r"made_with is an object, not a list"),
    ],
)
def test_the_field_that_is_wrong_is_named(path: tuple[Any, ...], value: Any, words: str) -> None:
    with pytest.raises(InvalidFile, match=words):
        from_json(with_changed(*path, value=value))


def test_the_field_reaches_another_process() -> None:
    with pytest.raises(InvalidFile) as caught:
        from_json(with_changed("made_with", value=3))
    assert caught.value.field == "made_with"
    assert pickle.loads(pickle.dumps(caught.value)).field == "made_with"


HALF = 16_000_000
MONSTERS = {
    "lists in lists": b"[" * 200_000 + b"]" * 200_000,
    "objects in objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "brackets that never close": b"[" * HALF,
    "a string that never ends": b'"' + b'\\"' * (HALF // 2),
    "many empty lists": b"[" + b"[]," * (HALF // 3) + b"[]]",
    "a number of a million digits": b"[" + b"9" * 1_000_000 + b"]",
    "nothing but spaces": b" " * HALF,
}


@pytest.mark.parametrize("what", MONSTERS)
def test_a_monster_is_refused_at_once(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the recursion limit is: a program that raised it would die in the parser."""
    (tmp_path / "plan.json").write_bytes(MONSTERS[what])
    monkeypatch.setattr(bounded_json, "MOST_BRACKETS", 2**20)
    limit, begin = sys.getrecursionlimit(), perf_counter()
    sys.setrecursionlimit(10**6)
    try:
        with pytest.raises(InvalidFile, match="does not hold a plan: it"):
            load(tmp_path / "plan.json")
    finally:
        sys.setrecursionlimit(limit)
    assert perf_counter() - begin < 5


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    with open(tmp_path / "plan.json", "wb") as file:
        file.truncate(2**40)  # a hole: it takes no room
    with pytest.raises(InvalidFile, match=r"it has 1\.00 TiB, and at most 64\.00 MiB are read"):
        load(tmp_path / "plan.json")


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "plan.json")
    with pytest.raises(InvalidFile, match="it is no ordinary file"):
        load(tmp_path / "plan.json")


def test_a_folder_is_no_plan(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"cannot read a plan from .*Is a directory"):
        opened(tmp_path)
