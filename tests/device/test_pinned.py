"""Page-locked memory is bounded by what was allowed, and where the system refuses it, training goes on without."""

from __future__ import annotations

import gc
import logging
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import vdnn
from cpu.equivalence import assert_same, train
from device.chains import DEPTH, MAP_NBYTES, chain
from vdnn.api import session_of
from vdnn.calibrate.this_machine import this_machine
from vdnn.errors import Infeasible
from vdnn.hardware.clocks import DeviceClock
from vdnn.runtime.runtime import shared_runtime
from vdnn.runtime.tiers.host import HostStore
from vdnn.runtime.transfers import stream_meter
from vdnn.runtime.transfers.streams import StreamTransfers
from vdnn.runtime.transfers.transit import TransitMemory
from vdnn.units import MiB

OFFLOAD: dict[str, Any] = {"strategy": "offload", "budget": "65%", "hardware": "titan-x", "costs": "roofline"}


@pytest.fixture(autouse=True)
def nothing_pinned(vdev: ModuleType) -> ModuleType:
    """What earlier tests left open, and torch kept of it, is gone."""
    gc.collect()
    shared_runtime().close()
    vdev.reset()
    return vdev


@pytest.mark.parametrize("host_budget", [1 * MiB, 4 * MiB, 7 * MiB])
def test_page_locked_memory_stays_within_the_host_budget(host_budget: int, vdev: ModuleType, tmp_path: Path) -> None:
    model, args = chain()
    expected = train(model, model, args)
    model, args = chain()
    virtual = vdnn.virtualize(model, host_budget=host_budget, spill_dir=str(tmp_path), **OFFLOAD)
    assert_same(expected, train(virtual, model, args))
    travelled = {link.tier for link in session_of(virtual).observed_links() if link.nbytes}
    assert travelled == {"host", "disk"}
    assert vdev.pinned_nbytes()[1] <= host_budget
    assert vdev.pinned_nbytes()[1] > 0 or host_budget < 4 * MAP_NBYTES  # no map fits into a part of one


def test_without_a_disk_to_go_to_a_host_budget_that_is_too_small_is_named(tmp_path: Path) -> None:
    model, args = chain()
    with pytest.raises(Infeasible, match=r"KiB on host \(by .* host_budget.*MiB on disk \(by .* disk_budget"):
        vdnn.virtualize(model, sample=args, host_budget=MiB, disk_budget=MiB, spill_dir=str(tmp_path), **OFFLOAD)


def test_a_tensor_cache_whose_host_is_full_goes_to_disk(vdev: ModuleType, tmp_path: Path) -> None:
    model, args = chain()
    tiers: dict[str, Any] = {"hardware": "titan-x", "host_budget": 2 * MiB, "spill_dir": str(tmp_path)}
    cache = vdnn.tensor_cache(10 * MiB, **tiers)
    with cache:
        model(*args).backward()
    assert cache.findings.sent_nbytes > 2 * MiB
    assert 0 < vdev.pinned_nbytes()[1] <= 2 * MiB


@pytest.mark.parametrize("most_pinned", [0, 3 * MAP_NBYTES])
def test_where_no_memory_can_be_page_locked_training_goes_on_and_says_so_once(
    most_pinned: int, vdev: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    model, args = chain()
    expected = train(model, model, args)
    model, args = chain()
    vdev.set_most_pinned(most_pinned)
    with caplog.at_level(logging.WARNING, "vdnn"):
        virtual = vdnn.virtualize(model, **OFFLOAD)
        assert_same(expected, train(virtual, model, args))
    assert caplog.text.count("goes on in ordinary memory") == 1
    assert "refuses to page-lock" in caplog.text
    assert "of the host tier are ordinary memory" in " ".join(str(vdnn.report(virtual)).split())
    assert vdev.pinned_nbytes()[1] <= most_pinned


def test_the_links_of_ordinary_memory_are_measured_where_no_other_can_be_had(
    vdev: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that was measured before the limit, and is after it."""
    monkeypatch.setenv("VDNN_CACHE_DIR", str(tmp_path))
    found = []
    for most_pinned in (None, 0, None):
        vdev.set_most_pinned(most_pinned)
        torch.accelerator.empty_host_cache()  # as in a process that begins
        found.append(dict(this_machine(str(tmp_path), "vdev:0").sources)["host"])
    pinned, ordinary = "half of the host's memory; page-locked memory", "ordinary memory: none could be page-locked"
    assert [found[0], found[2]] == [pinned, pinned]
    assert ordinary in found[1]


def test_what_copies_of_streams_take_is_seen_by_who_plans(vdev: ModuleType) -> None:
    """In virtual time, where a link is exactly as fast as it is."""
    model, args = chain()
    virtual = vdnn.virtualize(model, replan=False, **OFFLOAD)
    vdev.begin_virtual_time()
    vdev.set_copy_rate(1e9)
    virtual(*args).backward()
    torch.accelerator.synchronize()
    out, back = (link for link in session_of(virtual).observed_links() if link.tier == "host")
    assert out.num_copies == back.num_copies > DEPTH // 4
    assert out.bytes_per_s == pytest.approx(1e9)
    assert back.bytes_per_s == pytest.approx(1e9)


def test_moments_of_copies_that_nobody_asks_for_do_not_pile_up(
    vdev: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_meter, "MOST_AHEAD", 10)
    model, args = chain()
    virtual = vdnn.virtualize(model, replan=False, **OFFLOAD)
    vdev.set_blocking(True)
    for _ in range(8):
        virtual(*args).backward()
    transfers = session_of(virtual).transfers()
    assert isinstance(transfers, StreamTransfers)
    assert len(transfers._meter_to_host._ahead) <= 10


def test_memory_on_the_way_to_disk_makes_room_for_another_size(vdev: ModuleType) -> None:
    transit = TransitMemory(DeviceClock(torch.device("vdev:0")), HostStore().memory, 4 * MiB)
    for nbytes in (3 * MiB, MiB, 2 * MiB, 4 * MiB):
        taken = transit.take(nbytes)
        assert taken.is_pinned()
        assert taken.numel() == nbytes
        del taken
    held = [transit.take(2 * MiB) for _ in range(3)]
    assert [tensor.is_pinned() for tensor in held] == [True, True, False]
    assert vdev.pinned_nbytes()[1] <= 4 * MiB


def test_a_refusal_is_told_once_and_nobody_asks_again(vdev: ModuleType, caplog: pytest.LogCaptureFixture) -> None:
    vdev.set_most_pinned(0)
    host = HostStore()
    for _ in range(3):
        host.memory(MiB)
    vdev.set_most_pinned(None)
    assert not host.memory(MiB).is_pinned()
    assert host.ordinary_nbytes == 4 * MiB
    assert caplog.text.count("refuses to page-lock") == 1
