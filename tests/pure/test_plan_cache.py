"""Plans on disk: found again for the same question, kept apart for another, checked before they are believed."""

from __future__ import annotations

import gzip
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from larger import larger
from pure import graphs
from pure.growth import AT_MOST, TIMES, growth
from vdnn.cost.table import OpCost
from vdnn.environment import PLAN_CACHE
from vdnn.hardware.device import Hardware
from vdnn.hardware.observed_links import OBSERVED
from vdnn.ir import Graph, Op, Phase, Read, Role, Storage, Trait, Value
from vdnn.plan import Plan, Problem, solve
from vdnn.plan.files import plan_cache
from vdnn.plan.files.digest import graph_digest
from vdnn.plan.files.plan_cache import PlanCache, plan_key

MEASURED = (("device->host", "measured: a copy"),)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlanCache:
    monkeypatch.delenv(PLAN_CACHE, raising=False)
    return PlanCache(tmp_path / "a new folder")


def problem(bandwidth: float = 100.0, sources: tuple[tuple[str, str], ...] = (), **asked: object) -> Problem:
    hardware = replace(graphs.machine(bandwidth=bandwidth), sources=sources)
    return graphs.problem(graphs.chain(6), **({"hardware": hardware, "budget_nbytes": 700} | asked))  # type: ignore[arg-type]


def stored(cache: PlanCache, asked: Problem, strategy: str = "offload") -> Plan:
    plan = solve(asked, strategy)
    cache.store(plan, asked, strategy)
    return plan


def only_file(cache: PlanCache) -> Path:
    [path] = cache.directory.iterdir()
    return path


def rewrite(cache: PlanCache, change: Callable[[dict[str, object]], object]) -> None:
    """Change what is kept of the one plan there is."""
    document = json.loads(gzip.decompress(only_file(cache).read_bytes()))
    change(document)
    only_file(cache).write_bytes(gzip.compress(json.dumps(document).encode()))


def test_what_one_object_stores_another_finds(cache: PlanCache) -> None:
    plan = stored(cache, problem())
    assert plan.decisions
    assert PlanCache(cache.directory).lookup(problem(), "offload") == plan


def test_nothing_is_found_before_anything_is_stored(cache: PlanCache) -> None:
    assert cache.lookup(problem(), "offload") is None


def test_a_lossy_plan_is_found_by_the_problem_that_did_not_say_lossy(cache: PlanCache) -> None:
    asked = graphs.problem(graphs.layered())
    plan = stored(cache, asked, "gist-fp8")
    assert plan.problem.lossy == "fp8"
    assert cache.lookup(asked, "gist-fp8") == plan


OTHER_QUESTIONS = {
    "another budget": problem(budget_nbytes=701),
    "no budget": problem(budget_nbytes=None),
    "rounding allowed": problem(lossy="fp16"),
    "another density": problem(density=0.5),
    "codecs that take room": problem(codecs_take_room=True),
    "less room in a tier": problem(hardware=graphs.machine(host_nbytes=10_000)),
    "another machine": problem(hardware=replace(graphs.machine(), name="another")),
    "other constants of the machine": problem(bandwidth=50.0),
    "other costs that a model wrote": problem(seconds=2.0),
    "another graph": graphs.problem(graphs.chain(7), budget_nbytes=700),
    "inexact forms on offer": problem(variants={0: (OpCost(0.5, 1, variant="sums-4", exact=False),)}),
}


@pytest.mark.parametrize("other", OTHER_QUESTIONS)
def test_another_question_finds_nothing(cache: PlanCache, other: str) -> None:
    stored(cache, problem())
    assert cache.lookup(OTHER_QUESTIONS[other], "offload") is None


def test_another_strategy_finds_nothing(cache: PlanCache) -> None:
    stored(cache, problem())
    assert cache.lookup(problem(), "superneurons") is None


def test_another_vdnn_or_torch_finds_nothing(cache: PlanCache, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(cache, problem())
    monkeypatch.setattr(plan_cache, "made_with", lambda: {"vdnn": "0.0.1", "torch": "1.0"})
    assert cache.lookup(problem(), "offload") is None


def test_a_plan_of_other_sources_of_the_planner_is_not_found(cache: PlanCache, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(cache, problem())
    monkeypatch.setattr(plan_cache, "planner_digest", lambda: "edited")
    assert cache.lookup(problem(), "offload") is None


def test_measured_speeds_may_differ(cache: PlanCache) -> None:
    plan = stored(cache, problem(bandwidth=100.0, sources=MEASURED))
    found = cache.lookup(problem(bandwidth=97.0, sources=MEASURED), "offload")
    assert found is not None
    assert found.decisions == plan.decisions


def test_measured_on_other_threads_or_another_disk_is_another_machine(cache: PlanCache) -> None:
    stored(cache, problem(sources=MEASURED))
    assert cache.lookup(problem(sources=(("device->host", "measured: another copy"),)), "offload") is None


def test_speeds_that_training_has_shown_to_be_others_ask_for_another_plan(cache: PlanCache) -> None:
    shown = (("device->host", OBSERVED),)
    stored(cache, problem(bandwidth=100.0, sources=shown))
    assert cache.lookup(problem(bandwidth=103.0, sources=shown), "offload") is not None
    assert cache.lookup(problem(bandwidth=50.0, sources=shown), "offload") is None


def test_a_plan_in_a_place_that_others_own_is_found(cache: PlanCache, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = stored(cache, problem())

    def refused(path: Path) -> None:
        raise PermissionError(path)

    monkeypatch.setattr(os, "utime", refused)
    assert cache.lookup(problem(), "offload") == plan


def test_what_cannot_be_written_to_its_end_leaves_nothing_behind(
    cache: PlanCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(name: str, path: Path) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "replace", refused)
    stored(cache, problem())
    assert list(cache.directory.iterdir()) == []


def test_a_plan_that_is_found_is_priced_with_the_speeds_of_now(cache: PlanCache) -> None:
    plan = stored(cache, problem(bandwidth=100.0, sources=MEASURED))
    slower = cache.lookup(problem(bandwidth=10.0, sources=MEASURED), "offload")
    assert slower is not None
    assert slower.step_time_s > plan.step_time_s


@pytest.mark.parametrize(("bandwidth", "bound_s"), [(100.0, 3.5), (97.0, None)])
def test_a_bound_on_the_time_is_kept_only_under_its_own_prices(
    cache: PlanCache, bandwidth: float, bound_s: float | None
) -> None:
    asked = problem(bandwidth=100.0, sources=MEASURED)
    cache.store(replace(solve(asked, "offload"), bound_s=3.5))
    found = cache.lookup(problem(bandwidth=bandwidth, sources=MEASURED), "offload")
    assert found is not None
    assert found.bound_s == bound_s


def test_a_form_is_found_by_its_name_where_measured_times_have_changed_the_order(cache: PlanCache) -> None:
    slow, fast = OpCost(2.0, 5, "measured", "slices-4"), OpCost(1.0, 9, "measured", "chunks-4")
    asked = problem(sources=MEASURED, budget_nbytes=None, variants={0: (fast, slow)})
    cache.store(Plan(asked, "by hand", variants={0: 1}))
    reversed_order = problem(sources=MEASURED, budget_nbytes=None, variants={0: (replace(slow, seconds=0.5), fast)})
    found = cache.lookup(reversed_order, "by hand")
    assert found is not None
    assert found.costs[0].variant == "slices-4"


def test_a_plan_that_no_longer_holds_is_not_believed(cache: PlanCache) -> None:
    """Workspaces are measured, and so not in the key: here one has grown past the budget."""
    stored(cache, problem(sources=MEASURED))
    assert cache.lookup(problem(sources=MEASURED, workspace_nbytes=600), "offload") is None


DAMAGE: dict[str, Callable[[PlanCache], object]] = {
    "no bytes": lambda cache: only_file(cache).write_bytes(b""),
    "not compressed": lambda cache: only_file(cache).write_bytes(b"{}"),
    "cut off": lambda cache: only_file(cache).write_bytes(only_file(cache).read_bytes()[:-20]),
    "not a document": lambda cache: only_file(cache).write_bytes(gzip.compress(b"[1, 2]")),
    "nothing in it": lambda cache: rewrite(cache, dict.clear),
    "a storage that there is not": lambda cache: rewrite(cache, lambda kept: kept["decisions"][0].update(storage=999)),
    "decisions left out": lambda cache: rewrite(cache, lambda kept: kept["decisions"].pop()),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_broken_entry_is_ignored_and_replaced(
    cache: PlanCache, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    plan = stored(cache, problem())
    DAMAGE[damage](cache)
    with caplog.at_level(logging.INFO, logger="vdnn"):
        assert cache.lookup(problem(), "offload") is None
    assert "planning again" in caplog.text
    cache.store(plan)
    assert cache.lookup(problem(), "offload") == plan


def test_a_place_that_cannot_be_written_is_one_line_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    cache = PlanCache(tmp_path / "file" / "plans")
    with caplog.at_level(logging.INFO, logger="vdnn"):
        stored(cache, problem())
    assert [record.levelname for record in caplog.records] == ["INFO"]
    assert cache.lookup(problem(), "offload") is None


def test_the_default_place_is_in_the_cache_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VDNN_CACHE_DIR", str(tmp_path))
    stored(PlanCache(), problem())
    assert [path.name for path in tmp_path.iterdir()] == ["plans-v1"]


def test_off_neither_stores_nor_finds(cache: PlanCache, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(cache, problem())
    monkeypatch.setenv(PLAN_CACHE, "off")
    off = PlanCache(cache.directory)
    assert off.lookup(problem(), "offload") is None
    stored(off, problem(budget_nbytes=800))
    assert len(list(cache.directory.iterdir())) == 1


def test_past_the_limit_the_least_recently_used_plan_goes(cache: PlanCache, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(cache, problem(budget_nbytes=700))
    stored(cache, problem(budget_nbytes=800))
    for age, path in enumerate(sorted(cache.directory.iterdir())):
        os.utime(path, (age, age))  # two plans of long ago
    assert cache.lookup(problem(budget_nbytes=700), "offload") is not None  # and this one of now
    monkeypatch.setattr(plan_cache, "LIMIT_NBYTES", 2 * max(path.stat().st_size for path in cache.directory.iterdir()))
    stored(cache, problem(budget_nbytes=900))
    known = [budget for budget in (700, 800, 900) if cache.lookup(problem(budget_nbytes=budget), "offload") is not None]
    assert known == [700, 900]


KEY = """
from pure import graphs
from vdnn.plan.files.plan_cache import plan_key
print(plan_key(graphs.problem(graphs.in_place_chain()), "offload"))
"""


def test_another_process_makes_the_same_key() -> None:
    """Sets are ordered differently there: its hashes of words have another seed."""
    environment = {**os.environ, "PYTHONHASHSEED": "12345", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", KEY], capture_output=True, text=True, timeout=60, env=environment)
    assert done.stdout.strip() == plan_key(graphs.problem(graphs.in_place_chain()), "offload"), done.stderr


def test_the_name_of_a_graph_is_not_part_of_what_it_is() -> None:
    graph = graphs.chain(3)
    assert graph_digest(replace(graph, name="step #2")) == graph_digest(graph)


def changed_op(**changes: object) -> Graph:
    graph = graphs.chain(3)
    return replace(graph, ops=(*graph.ops[:-1], replace(graph.ops[-1], **changes)))  # type: ignore[arg-type]


CHANGES = {
    "an op": changed_op(target="another"),
    "a trait": changed_op(traits=frozenset({Trait.RANDOM})),
    "what is read": changed_op(reads=graphs.chain(3).ops[-1].reads[1:]),
    "what is read of it": changed_op(reads=tuple(replace(r, detail=(1,)) for r in graphs.chain(3).ops[-1].reads)),
    "a size": graphs.chain(3, nbytes=104),
    "what is held": replace(graphs.chain(3), held=()),
}


@pytest.mark.parametrize("change", CHANGES)
def test_every_part_of_a_graph_is_part_of_its_digest(change: str) -> None:
    assert graph_digest(CHANGES[change]) != graph_digest(graphs.chain(3))


def long_chain(num_ops: int) -> Graph:
    values = tuple(Value(f"a{i}", i, (32, 64, 56, 56), "float32") for i in range(num_ops + 1))
    storages = tuple(Storage(f"a{i}", 1 << 20, Role.FEATURE_MAP, "float32", (i,)) for i in range(num_ops + 1))
    ops = tuple(
        Op(f"op{i}", "conv", Phase.FORWARD, f"layers.{i}", (Read(i), Read(0)), (i + 1,)) for i in range(num_ops)
    )
    return Graph("long", ops, values, storages, (0,), (), ())


@pytest.mark.parametrize("num_ops", [8_000, *larger(70_000)])
def test_the_work_of_a_digest_grows_with_the_ops_not_with_their_square(num_ops: int) -> None:
    assert growth(graph_digest, long_chain(num_ops // TIMES), long_chain(num_ops)) < AT_MOST


def test_presets_are_constants_and_not_measurements() -> None:
    from vdnn.hardware.presets import PRESETS, preset

    machines: list[Hardware] = [preset(name) for name in PRESETS]
    assert not [m.name for m in machines if plan_cache._is_measured(graphs.problem(graphs.chain(2), hardware=m))]
