"""The device's memory: a limit that holds, statistics that count what kernels take, blocks that are used again."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest
import torch

from vdnn.units import KiB, MiB


@pytest.fixture(autouse=True)
def empty_device(vdev: ModuleType) -> Iterator[None]:
    """The second one: on the first lie tables of other files, where the whole suite is run."""
    with torch.accelerator.device_index(1):
        torch.accelerator.empty_cache()
        torch.accelerator.reset_accumulated_memory_stats()
        yield


def bytes_of(nbytes: int, device: str = "vdev") -> torch.Tensor:
    return torch.empty(nbytes, dtype=torch.uint8, device=device)


def test_past_the_limit_an_allocation_is_refused_and_work_goes_on(vdev: ModuleType) -> None:
    vdev.set_limit(40 * MiB)
    kept = bytes_of(24 * MiB).fill_(3)
    with pytest.raises(torch.OutOfMemoryError, match="tried to allocate 25165824 bytes"):
        bytes_of(24 * MiB)
    with pytest.raises(torch.OutOfMemoryError):
        kept + kept
    assert bytes_of(24 * MiB, "vdev:0").numel() == 24 * MiB  # the other device has its own
    assert kept[-1].item() == 3
    del kept
    assert bytes_of(40 * MiB).numel() == 40 * MiB


def test_cached_blocks_go_back_before_an_allocation_is_refused(vdev: ModuleType) -> None:
    vdev.set_limit(40 * MiB)
    for nbytes in (24 * MiB, 32 * MiB, 40 * MiB):
        bytes_of(nbytes)
    assert torch.accelerator.memory_stats()["num_alloc_retries"] >= 2


def test_the_peak_is_of_all_that_was_held_at_once(vdev: ModuleType) -> None:
    vdev.set_blocking(True)
    before = torch.accelerator.memory_allocated()
    first = bytes_of(3 * MiB)
    second = bytes_of(5 * MiB)
    del first
    third = bytes_of(1000)
    assert torch.accelerator.memory_allocated() - before == 5 * MiB + 1024
    assert torch.accelerator.max_memory_allocated() - before == 8 * MiB
    torch.accelerator.reset_peak_memory_stats()
    assert torch.accelerator.max_memory_allocated() - before == 5 * MiB + 1024
    del second, third
    assert torch.accelerator.memory_allocated() == before


def test_what_a_kernel_takes_for_itself_counts(vdev: ModuleType) -> None:
    vdev.set_blocking(True)
    x = torch.randn(1, 16, 32, 32, dtype=torch.float64, device="vdev")
    weight = torch.randn(4, 16, 3, 3, dtype=torch.float64, device="vdev")
    torch.accelerator.reset_peak_memory_stats()
    before = torch.accelerator.memory_allocated()
    y = torch.conv2d(x, weight, padding=1)
    columns_nbytes = 16 * 3 * 3 * 32 * 32 * 8
    assert torch.accelerator.max_memory_allocated() - before >= y.nbytes + columns_nbytes
    assert torch.accelerator.memory_allocated() - before == y.nbytes


def test_blocks_are_split_and_joined(vdev: ModuleType) -> None:
    parts = [bytes_of(256 * KiB) for _ in range(8)]
    assert torch.accelerator.memory_stats()["segment.small_pool.current"] == 1
    start = parts[2].data_ptr()
    del parts[2:5]
    assert bytes_of(768 * KiB).data_ptr() == start
    parts.clear()
    torch.accelerator.empty_cache()
    assert torch.accelerator.memory_reserved() == 0


def test_without_segments_the_limit_is_that_of_the_blocks(vdev: ModuleType) -> None:
    vdev.set_segments(0, 0)
    vdev.set_limit(10 * KiB)
    blocks = [bytes_of(1000) for _ in range(10)]
    assert torch.accelerator.get_memory_info() == (0, 10 * KiB)
    with pytest.raises(torch.OutOfMemoryError):
        bytes_of(1)
    assert len(blocks) == 10


def test_a_storage_that_changes_its_size_keeps_its_bytes(vdev: ModuleType) -> None:
    x = torch.arange(1000, device="vdev")
    before = torch.accelerator.memory_allocated()
    x.untyped_storage().resize_(0)
    assert torch.accelerator.memory_allocated() == before - 8192
    y = torch.arange(10, device="vdev")
    y.resize_(2000)
    assert torch.equal(y[:10].cpu(), torch.arange(10))
    z = torch.empty(0, dtype=torch.int64, device="vdev").set_(y.untyped_storage(), 2, (4,), (2,))
    assert torch.equal(z.cpu(), torch.tensor([2, 4, 6, 8]))


def test_freed_memory_is_nan_once_its_stream_has_passed(vdev: ModuleType) -> None:
    vdev.set_poison(True)
    x = torch.zeros(1000, device="vdev")
    seen = torch.empty(0, device="vdev").set_(
        torch._C._construct_storage_from_data_pointer(x.data_ptr(), x.device, x.nbytes), 0, (1000,)
    )
    del x
    assert bool(seen.isnan().all())
