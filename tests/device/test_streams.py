"""Streams run beside each other, and only events and `record_stream` order them: who leaves one out is found out."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType

import pytest
import torch

from vdnn.units import KiB, MiB

NUMEL = 4096


def streams() -> tuple[torch.Stream, torch.Stream]:
    return torch.Stream("vdev"), torch.Stream("vdev")


def test_two_streams_run_at_the_same_time_and_the_caller_goes_on(vdev: ModuleType) -> None:
    begin, ends = time.perf_counter(), [torch.Event("vdev", enable_timing=True) for _ in range(2)]
    for stream, end in zip(streams(), ends, strict=True):
        with stream:
            vdev.sleep(0.2)
            end.record()
    assert time.perf_counter() - begin < 0.1
    torch.accelerator.synchronize()
    assert 0.19 < time.perf_counter() - begin < 0.35
    assert abs(ends[0].elapsed_time(ends[1])) < 100


def test_events_tell_the_time_between_them(vdev: ModuleType) -> None:
    first, last = (torch.Event("vdev", enable_timing=True) for _ in range(2))
    first.record()
    vdev.sleep(0.05)
    last.record()
    assert not last.query()
    last.synchronize()
    assert 50 <= first.elapsed_time(last) < 150


@pytest.mark.parametrize("waits", [True, False])
def test_a_stream_that_does_not_wait_reads_what_is_not_there_yet(vdev: ModuleType, waits: bool) -> None:
    vdev.set_delay(50_000)
    source, target = torch.zeros(NUMEL, device="vdev"), torch.empty(NUMEL, device="vdev")
    torch.accelerator.synchronize()
    writes, reads = streams()
    written = torch.Event("vdev")
    with writes:
        source.add_(1).mul_(2).add_(1)
        written.record()
    with reads:
        if waits:
            reads.wait_event(written)
        target.copy_(source)
    torch.accelerator.synchronize()
    assert bool((target == 3).all()) is waits


@pytest.mark.parametrize("records", [True, False])
def test_memory_freed_under_another_stream_is_overwritten(vdev: ModuleType, records: bool) -> None:
    vdev.set_poison(True)
    source, target = torch.ones(NUMEL, device="vdev"), torch.empty(NUMEL, device="vdev")
    torch.accelerator.synchronize()
    side, _ = streams()
    with side:
        vdev.sleep(0.1)
        target.copy_(source)
    if records:
        source.record_stream(side)
    del source
    torch.accelerator.synchronize()
    assert bool((target == 1).all()) is records
    assert bool(target.isnan().all()) is not records


def test_recorded_memory_is_not_given_out_while_its_stream_runs(vdev: ModuleType) -> None:
    source = torch.ones(NUMEL, device="vdev")
    address = source.data_ptr()
    side, _ = streams()
    with side:
        vdev.sleep(0.1)
    source.record_stream(side)
    del source
    others = [torch.empty(NUMEL, device="vdev") for _ in range(3)]
    assert address not in {other.data_ptr() for other in others}
    assert (
        torch.accelerator.memory_stats()["active.all.current"]
        > torch.accelerator.memory_stats()["allocation.all.current"]
    )
    side.synchronize()
    assert torch.empty(NUMEL, device="vdev").data_ptr() == address


@pytest.mark.parametrize(("is_pinned", "non_blocking"), [(True, True), (True, False), (False, True)])
def test_only_copies_of_pinned_memory_that_may_not_block_do_not(
    vdev: ModuleType, is_pinned: bool, non_blocking: bool
) -> None:
    vdev.set_copy_rate(10 * MiB)
    host = torch.full((MiB,), 7, dtype=torch.uint8, pin_memory=is_pinned)
    assert host.is_pinned() is is_pinned
    begin = time.perf_counter()
    there = host.to("vdev", non_blocking=non_blocking)
    took_s = time.perf_counter() - begin
    assert (took_s < 0.05) is (is_pinned and non_blocking)
    assert torch.equal(there.cpu(), host)
    assert time.perf_counter() - begin >= 0.2


def test_pinned_memory_waits_for_its_copies(vdev: ModuleType) -> None:
    vdev.set_copy_rate(MiB)
    there = torch.zeros(64 * KiB, dtype=torch.uint8, device="vdev")
    host = torch.full_like(there, 5, device="cpu").pin_memory()
    there.copy_(host, non_blocking=True)
    address = host.data_ptr()
    del host
    other = torch.full((64 * KiB,), 9, dtype=torch.uint8).pin_memory()
    assert other.data_ptr() != address
    assert bool((there == 5).all())


def test_an_error_of_a_queued_op_is_raised_when_its_stream_is_waited_for(vdev: ModuleType) -> None:
    x = torch.ones(4, device="vdev")
    torch.mul(x, 2, out=torch.empty(3, device="vdev"))
    with pytest.raises(RuntimeError, match="another shape than its out="):
        torch.accelerator.synchronize()
    assert x.sum().item() == 4


def test_each_device_has_its_own_streams_and_copies_between_them_are_ordered(vdev: ModuleType) -> None:
    vdev.set_delay(20_000)
    assert torch.accelerator.device_count() == 2
    with torch.accelerator.device_index(1):
        source = torch.ones(NUMEL, device="vdev").mul_(3)
        assert source.device == torch.device("vdev", 1)
        assert torch.accelerator.current_stream().device_index == 1
    target = source.to("vdev:0", non_blocking=True)
    source.zero_()
    assert bool((target == 3).all())


def test_threads_on_one_stream_do_not_get_memory_that_another_still_reads(vdev: ModuleType) -> None:
    vdev.set_poison(True)
    starts = [torch.randn(64, 64, device="vdev") for _ in range(3)]

    def computed(x: torch.Tensor) -> torch.Tensor:
        """Kernels that are queued and kernels that run in the caller, on memory that is freed at once."""
        for _ in range(100):
            x = torch.relu(x @ x / 8)
            x = torch.empty_like(x).copy_(x).mul_(0.5).add_(x)
            x = (x - x.mean()) * 10 / x.norm()
        return x.cpu()

    expected = [computed(x) for x in starts]
    with ThreadPoolExecutor(max_workers=3) as threads:
        for _ in range(5):
            assert all(map(torch.equal, threads.map(computed, starts), expected))
