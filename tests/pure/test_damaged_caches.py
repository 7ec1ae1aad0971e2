"""Caches as crashes and strangers leave them: found to be what they were, or started afresh; never an error, never for
long, and nobody else's to read. The file of this machine's speeds is in `tests/cpu/test_machine.py`."""

from __future__ import annotations

import gzip
import json
import os
import sqlite3
import stat
import threading
import tracemalloc
import zlib
from contextlib import closing
from pathlib import Path
from time import perf_counter

import pytest

from larger import larger
from pure import graphs
from pure.mutations import damaged, many, mutated
from vdnn.cost import cost_cache
from vdnn.cost.cost_cache import CostCache
from vdnn.cost.table import OpCost
from vdnn.environment import PLAN_CACHE
from vdnn.plan import check, solve
from vdnn.plan.files import plan_cache as plans_on_disk
from vdnn.plan.files.plan_cache import PlanCache
from vdnn.reading.private_files import private_folder

COSTS = {f"op {number}": OpCost(0.001 * number, 64 * number, "measured") for number in range(20)}
PROBLEM = graphs.problem(graphs.chain(6), budget_nbytes=700)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "costs.sqlite3"


def filled(path: Path) -> CostCache:
    cache = CostCache(path, machine="m")
    cache.lookup(())  # makes the file; the costs go in at once, which is faster than one by one
    with closing(sqlite3.connect(path)) as file, file:
        rows = [("m", key, cost.seconds, cost.workspace_nbytes, cost.source, True) for key, cost in COSTS.items()]
        file.executemany("INSERT INTO cost VALUES (?, ?, ?, ?, ?, ?)", rows)
    assert CostCache(path, machine="m").lookup(COSTS) == COSTS
    return cache


def assert_works(path: Path) -> None:
    """What is found is a cost, and what is stored is found."""
    cache = CostCache(path, machine="m")
    assert all(0 <= cost.seconds < 1e9 and cost.workspace_nbytes >= 0 for cost in cache.lookup(COSTS).values())
    cache.store("new", OpCost(0.5))
    assert CostCache(path, machine="m").lookup(["new"]) == {"new": OpCost(0.5)}


@pytest.mark.parametrize("count", [30, *larger(500)])
def test_damaged_costs_are_started_anew_or_still_costs(count: int, path: Path) -> None:
    filled(path)
    whole = path.read_bytes()
    for chance in many(count, seed=4):
        path.write_bytes(damaged(whole, chance))
        assert_works(path)


def changed_row(column: str, value: object) -> str:
    return f"PRAGMA ignore_check_constraints = ON; UPDATE cost SET {column} = {value} WHERE key = 'op 3';"


ANOTHER_TABLE = "DROP TABLE cost; CREATE TABLE cost (machine, key, seconds, workspace_nbytes, source, exact);"
ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n)"
HOSTILE = {
    "negative seconds": changed_row("seconds", -1.0),
    "1e308 seconds": changed_row("seconds", 1e308),
    "infinite seconds": changed_row("seconds", "9e999"),
    "seconds in words": changed_row("seconds", "'soon'"),
    "seconds in bytes": changed_row("seconds", "x'00ff'"),
    "half a byte": changed_row("workspace_nbytes", 0.5),
    "negative bytes": changed_row("workspace_nbytes", -5),
    "more bytes than there are": changed_row("workspace_nbytes", 2**63 - 1),
    "a source of bytes": changed_row("source", "x'ff'"),
    "text that is none": changed_row("source", "CAST(x'ff' AS TEXT)"),
    "exact to the third": changed_row("exact", 3),
    "columns of any type": ANOTHER_TABLE + "INSERT INTO cost VALUES ('m', 'op 3', NULL, NULL, NULL, NULL);",
    "other columns": "DROP TABLE cost; CREATE TABLE cost (something);",
    "a view without end": "DROP TABLE cost; CREATE VIEW cost AS "
    + ENDLESS
    + " SELECT 'm' machine, 'k' key, x seconds, 1 workspace_nbytes, 's' source, 1 exact FROM n;",
    "a trigger without end": "CREATE TRIGGER t BEFORE INSERT ON cost BEGIN SELECT count(*) FROM ("
    + ENDLESS
    + " SELECT x FROM n); END;",
    "an index of its own": "CREATE INDEX i ON cost (seconds);",
    "many tables": "".join(f"CREATE TABLE t{number} (x);" for number in range(50)),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_costs_that_are_none_are_started_anew_and_at_once(what: str, path: Path) -> None:
    filled(path)
    with closing(sqlite3.connect(path)) as file:
        file.executescript(HOSTILE[what])
    begin = perf_counter()
    found = CostCache(path, machine="m").lookup(["op 3", "new"])
    assert found in ({}, {"op 3": COSTS["op 3"]})
    assert_works(path)
    assert perf_counter() - begin < 4


def test_a_pipe_or_a_file_too_large_in_its_place_is_replaced(path: Path) -> None:
    path.parent.mkdir()
    os.mkfifo(path)
    assert_works(path)
    with open(path, "wb") as file:
        file.truncate(2**40)
    assert_works(path)
    assert path.stat().st_size < 2**20


def test_a_locked_file_is_waited_for_once_not_for_every_op(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost_cache, "_LOCK_WAIT_S", 0.2)
    filled(path)
    with closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN EXCLUSIVE")
        begin, cache = perf_counter(), CostCache(path, machine="m")
        for number in range(100):
            cache.store(f"new {number}", OpCost(0.25))
            assert CostCache(path, machine="m").lookup(["op 3"]) == {}
        assert len(cache.lookup(f"new {number}" for number in range(100))) == 100  # in memory
        assert perf_counter() - begin < 2
    monkeypatch.setattr(cost_cache, "_left_alone_until", {})  # a minute later
    assert CostCache(path, machine="m").lookup(["op 3"]) == {"op 3": COSTS["op 3"]}


def test_a_lock_that_opens_in_time_loses_nothing(path: Path) -> None:
    filled(path)
    other = sqlite3.connect(path, check_same_thread=False)
    other.execute("BEGIN EXCLUSIVE")
    threading.Timer(0.3, other.close).start()
    CostCache(path, machine="m").store("new", OpCost(0.25))
    assert CostCache(path, machine="m").lookup(["new"]) == {"new": OpCost(0.25)}


@pytest.fixture
def plan_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlanCache:
    monkeypatch.delenv(PLAN_CACHE, raising=False)
    return PlanCache(tmp_path / "plans")


@pytest.mark.parametrize("count", [100, *larger(1_000)])
def test_a_damaged_plan_is_planned_again_or_holds(count: int, plan_cache: PlanCache) -> None:
    plan_cache.store(solve(PROBLEM, "offload"))
    [path] = plan_cache.directory.iterdir()
    whole, num_found = path.read_bytes(), 0
    document = json.loads(gzip.decompress(whole))
    for chance in many(count, seed=5):
        body = gzip.compress(json.dumps(mutated(document, chance)).encode(), 1)
        path.write_bytes(damaged(whole, chance) if chance.random() < 0.3 else body)
        plan = plan_cache.lookup(PROBLEM, "offload")
        if plan is not None:
            num_found += 1
            assert check(plan).peak_nbytes <= 700
            assert str(plan).replace("\n", "").isprintable()
    assert 0 < num_found < count


def bomb(nbytes: int) -> bytes:
    """So many zeros, in a few hundredths of the bytes."""
    packer = zlib.compressobj(1, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    zeros = bytes(2**20)
    return b"".join([*(packer.compress(zeros) for _ in range(nbytes // 2**20)), packer.flush()])


def test_a_bomb_is_not_unpacked(plan_cache: PlanCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans_on_disk, "PLAN_NBYTES", 2**20)
    plan_cache.store(solve(PROBLEM, "offload"))
    [path] = plan_cache.directory.iterdir()
    path.write_bytes(bomb(2**27))
    tracemalloc.start()
    try:
        assert plan_cache.lookup(PROBLEM, "offload") is None
        assert tracemalloc.get_traced_memory()[1] < 2**23
    finally:
        tracemalloc.stop()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_what_is_kept_is_nobody_elses_to_read(path: Path, plan_cache: PlanCache) -> None:
    before = os.umask(0)
    try:
        filled(path)
        plan_cache.store(solve(PROBLEM, "offload"))
    finally:
        os.umask(before)
    [plan] = plan_cache.directory.iterdir()
    assert [mode(file) for file in (path, plan)] == [0o600, 0o600]
    assert [mode(folder) for folder in (path.parent, plan_cache.directory)] == [0o700, 0o700]


def test_a_file_that_was_open_to_others_is_closed(path: Path) -> None:
    filled(path)
    path.chmod(0o644)
    CostCache(path, machine="m").lookup(COSTS)
    assert mode(path) == 0o600


def test_the_default_folder_is_closed_and_one_that_the_user_named_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    default, named = tmp_path / ".cache" / "vdnn", tmp_path / "named"
    for folder in (default, named):
        folder.mkdir(parents=True)
        folder.chmod(0o755)
        private_folder(folder)
    assert (mode(default), mode(named)) == (0o700, 0o755)
