"""The room on disk is a part of the plan: a plan that fits it, or a refusal with its numbers, before the first step."""

from __future__ import annotations

import gc
import resource
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from equivalence import assert_same_state, both
from tiers import DISK, slow_down
from torch import nn

import vdnn
from vdnn.api import session_of
from vdnn.errors import ForeignPlan, Infeasible
from vdnn.hardware.device import Tier, bounded
from vdnn.hardware.observed_links import as_observed, observed_since
from vdnn.runtime.tiers.disk import DiskStore
from vdnn.units import KiB, MiB
from where import seeded

pytestmark = pytest.mark.any_device

BATCH = torch.randn(512, 64, generator=seeded(0))


def net() -> nn.Module:
    """Eight maps of 128 KiB that have to leave where the budget is small."""
    torch.manual_seed(0)
    return nn.Sequential(*(layer for _ in range(8) for layer in (nn.Linear(64, 64), nn.Sigmoid())))


def virtual_of(model: nn.Module, directory: Path, **options: Any) -> nn.Module:
    asked: dict[str, Any] = {"budget": "60%", "hardware": DISK, "strategy": "offload", "spill_dir": str(directory)}
    return vdnn.virtualize(model, sample=(BATCH,), **(asked | options))


def store_of(virtual: nn.Module) -> DiskStore:
    store = session_of(virtual).transfers().stores["disk"]
    assert isinstance(store, DiskStore)
    return store


def on_disk_nbytes(virtual: nn.Module) -> int:
    [executor] = session_of(virtual).executors
    return int(executor.plan.timeline.total("disk").max())


@contextmanager
def small_disk(where: Path, nbytes: int) -> Iterator[Path]:
    where.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={nbytes}", "tmpfs", str(where)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("cannot mount a tmpfs here")
    try:
        yield where
    finally:
        subprocess.run(["umount", "-l", str(where)], check=True)


def assert_trains_exactly(plain: nn.Module, virtual: nn.Module) -> None:
    for _ in range(2):
        both(plain, virtual, lambda model: model(BATCH).square().sum().backward())
    assert_same_state(plain, virtual)


def test_a_tier_is_at_most_as_large_as_it_is_bounded() -> None:
    assert bounded(DISK, "disk", None) is DISK
    assert bounded(DISK, "disk", 5).tiers == (Tier("device"), Tier("disk", 5))
    assert bounded(bounded(DISK, "disk", 5), "disk", 7).tier("disk").nbytes == 5


def test_what_a_plan_sends_to_disk_is_set_aside_before_the_first_step(tmp_path: Path) -> None:
    virtual = virtual_of(net(), tmp_path)
    store = store_of(virtual)
    assert on_disk_nbytes(virtual) >= 512 * KiB
    assert store._file is not None
    grown = store._ledger.row_nbytes
    assert grown >= on_disk_nbytes(virtual)
    virtual(BATCH).sum().backward()
    assert store._ledger.row_nbytes == grown


def test_a_small_disk_leads_to_a_plan_with_less_of_it_and_training_is_exact(tmp_path: Path) -> None:
    free = on_disk_nbytes(virtual_of(net(), tmp_path, strategy="auto", budget="70%")) * 3 // 4
    with small_disk(tmp_path / "small", free) as where:
        virtual = virtual_of(net(), where, strategy="auto", budget="70%")
        assert 0 < on_disk_nbytes(virtual) <= free
        assert_trains_exactly(net(), virtual)
        del virtual
        gc.collect()


def test_a_disk_that_is_too_small_for_any_plan_is_refused_with_its_numbers(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", 256 * KiB) as where:
        words = r"(?s)no 'offload' plan fits .*with room for 256\.00 KiB on disk \(by its free space or disk_budget"
        with pytest.raises(Infeasible, match=words):
            virtual_of(net(), where)


def test_pages_that_places_round_up_to_are_part_of_the_room(tmp_path: Path) -> None:
    """The disk has the bytes that the plan counts, and not the page that each place may take beyond them."""
    free = on_disk_nbytes(virtual_of(net(), tmp_path, strategy="auto", budget="70%"))
    with small_disk(tmp_path / "small", free) as where:
        virtual = virtual_of(net(), where, strategy="auto", budget="70%")
        assert on_disk_nbytes(virtual) < free
        assert_trains_exactly(net(), virtual)
        del virtual
        gc.collect()


def test_what_other_models_of_the_process_were_promised_counts_until_they_are_gone(tmp_path: Path) -> None:
    needed = on_disk_nbytes(virtual_of(net(), tmp_path))
    with small_disk(tmp_path / "small", needed * 3 // 2) as where:
        first = virtual_of(net(), where)
        with pytest.raises(Infeasible, match="with room for"):
            virtual_of(net(), where)
        with pytest.raises(Infeasible, match="with room for"):
            virtual_of(net(), where, disk_budget="1GiB")  # a store of its own on the same disk
        assert first(BATCH).sum().isfinite()
        del first
        assert_trains_exactly(net(), virtual_of(net(), where))  # the first one is garbage, and is collected
        gc.collect()


def test_shapes_that_alternate_take_turns_in_the_same_room(tmp_path: Path) -> None:
    virtual = virtual_of(net(), tmp_path, disk_budget=10 * MiB, budget="900KiB")
    room, store = session_of(virtual).disk_room, store_of(virtual)
    for rows in (512, 384, 512, 320):
        virtual(BATCH[:rows]).sum().backward()
    assert len(session_of(virtual).executors) == 3
    assert store.promisable_nbytes == 10 * MiB - room._nbytes
    assert room._padded_nbytes == store._ledger.row_nbytes


def test_the_limit_of_the_process_for_files_is_a_bound_like_the_disk_s(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (256 * KiB, hard))
    try:
        with pytest.raises(Infeasible, match=r"with room for 256\.00 KiB"):
            virtual_of(net(), tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.cpu_only("worker threads alone can be slowed down")
def test_a_disk_that_becomes_slow_in_mid_training_shows_in_the_next_step(tmp_path: Path) -> None:
    virtual = virtual_of(net(), tmp_path)
    session = session_of(virtual)
    virtual(BATCH).sum().backward()
    before = session.observed_links()
    slow_down(virtual, "disk", 20e6)
    virtual(BATCH).sum().backward()
    links = observed_since(session.observed_links(), before)
    assert [(link.tier, link.is_back) for link in links] == [("disk", False), ("disk", True)]
    assert all(link.nbytes >= on_disk_nbytes(virtual) for link in links)
    assert all(1e6 < (link.bytes_per_s or 0) <= 20e6 for link in links)
    priced = as_observed(DISK, links)
    assert all(link.bandwidth_bytes_per_s <= 20e6 for link in priced.links)


def test_a_saved_plan_that_the_disk_cannot_hold_is_refused(tmp_path: Path) -> None:
    [executor] = session_of(virtual_of(net(), tmp_path)).executors
    with (
        small_disk(tmp_path / "small", 256 * KiB) as where,
        pytest.raises(ForeignPlan, match="disk"),
    ):
        virtual_of(net(), where, plan=executor.plan, strategy=None)
