"""Measured costs on disk: found again, kept apart by machine, and never in the way."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from vdnn.cost.cost_cache import CostCache
from vdnn.cost.table import OpCost

COST = OpCost(0.25, 4096, "measured")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a new folder" / "costs.sqlite3"


def test_what_one_object_stores_another_finds(path: Path):
    CostCache(path, machine="m").store("conv", COST)
    assert CostCache(path, machine="m").lookup(["conv", "relu"]) == {"conv": COST}


def test_a_cost_stored_again_replaces_the_first(path: Path):
    cache = CostCache(path, machine="m")
    cache.store("conv", COST)
    cache.store("conv", OpCost(9.0, 1, "measured"))
    assert CostCache(path, machine="m").lookup(["conv"])["conv"].seconds == 9.0


def test_another_machine_finds_nothing(path: Path):
    CostCache(path, machine="m").store("conv", COST)
    assert CostCache(path, machine="another").lookup(["conv"]) == {}


def test_a_damaged_file_is_started_anew(path: Path):
    path.parent.mkdir()
    path.write_bytes(b"this is no database" * 1000)
    damaged = CostCache(path, machine="m")
    assert damaged.lookup(["conv"]) == {}
    damaged.store("conv", COST)
    assert CostCache(path, machine="m").lookup(["conv"]) == {"conv": COST}


def test_a_damaged_file_is_noted_in_the_log(path: Path, caplog: pytest.LogCaptureFixture):
    path.parent.mkdir()
    path.write_bytes(b"this is no database" * 1000)
    with caplog.at_level(logging.INFO, logger="vdnn"):
        CostCache(path, machine="m").lookup(["conv"])
    assert [record.levelname for record in caplog.records] == ["INFO"]
    assert "anew" in caplog.text


def test_a_damaged_file_costs_no_store(path: Path):
    cache = CostCache(path, machine="m")
    path.parent.mkdir()
    path.write_bytes(b"this is no database" * 1000)
    cache.store("conv", COST)
    assert CostCache(path, machine="m").lookup(["conv"]) == {"conv": COST}


def test_a_place_that_cannot_be_written_leaves_the_costs_in_memory(tmp_path: Path):
    (tmp_path / "file").write_text("")
    cache = CostCache(tmp_path / "file" / "costs.sqlite3", machine="m")
    cache.store("conv", COST)
    assert cache.lookup(["conv"]) == {"conv": COST}


def test_the_default_place_is_the_cache_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("VDNN_CACHE_DIR", str(tmp_path))
    CostCache(machine="m").store("conv", COST)
    assert [file.name for file in tmp_path.iterdir()] == ["costs-v6.sqlite3"]


WRITER = """
import sys
from vdnn.cost.cost_cache import CostCache
from vdnn.cost.table import OpCost
cache = CostCache(sys.argv[1], machine="m")
for i in range(50):
    cache.store(f"{sys.argv[2]}-{i}", OpCost(1.0, i))
"""


def test_processes_that_write_at_once_lose_nothing(path: Path):
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), name]) for name in ("a", "b", "c")]
    assert [writer.wait(timeout=60) for writer in writers] == [0, 0, 0]
    keys = [f"{name}-{i}" for name in "abc" for i in range(50)]
    assert set(CostCache(path, machine="m").lookup(keys)) == set(keys)


def test_how_a_cost_is_known_is_kept(path: Path):
    cost = OpCost(0.25, 4096, "measured beside others", exact=False)
    CostCache(path, machine="m").store("conv", cost)
    assert CostCache(path, machine="m").lookup(["conv"]) == {"conv": cost}
