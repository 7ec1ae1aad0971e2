"""The disk tier: bytes come back whatever their alignment, and every fault is one clear error."""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import resource
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from random_examples import examples
from vdnn.calibrate.disk_speed import measure_disk
from vdnn.errors import InvalidInput, TierFailed, TierFull
from vdnn.runtime.tiers import disk as disk_module
from vdnn.runtime.tiers import disk_file
from vdnn.runtime.tiers.disk import DiskStore
from vdnn.units import MiB

pytestmark = pytest.mark.any_device

PAGE = 4096


def random_bytes(nbytes: int) -> torch.Tensor:
    return torch.randint(0, 256, (nbytes,), dtype=torch.uint8)


def round_trip(store: DiskStore, nbytes: int = 10_000) -> bool:
    source, target = random_bytes(nbytes), torch.zeros(nbytes, dtype=torch.uint8)
    place = store.reserve(nbytes)
    place.write(source)
    place.read(target)
    return torch.equal(source, target)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DiskStore]:
    store = DiskStore(tmp_path)
    yield store
    store.close()


def mounted(kind: str, options: str, where: Path) -> Iterator[Path]:
    """A small file system of its own, if this process may mount one."""
    where.mkdir()
    command = ["mount", "-t", kind, "-o", options, kind, str(where)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip(f"cannot mount a {kind} here")
    yield where
    subprocess.run(["umount", "-l", str(where)], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    yield from mounted("tmpfs", "size=1m", tmp_path / "small")


@pytest.fixture
def disk_without_direct_io(tmp_path: Path) -> Iterator[Path]:
    yield from mounted("ramfs", "mode=700", tmp_path / "ram")


positions = st.one_of(st.sampled_from([0, 64, 512, PAGE - 1]), st.integers(0, 2 * PAGE))


@examples(60)
@given(
    nbytes=st.integers(0, 5 * PAGE),
    source_at=positions,
    target_at=positions,
    is_direct=st.booleans(),
    verify=st.booleans(),
)
def test_bytes_come_back_into_any_alignment_and_touch_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, nbytes: int, source_at: int, target_at: int, is_direct: bool, verify: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if not is_direct:
            patch.setattr(disk_file, "direct_flag", lambda: 0)
        patch.setattr(disk_module, "CHUNK_NBYTES", 2 * PAGE)
        store = DiskStore(tmp_path_factory.getbasetemp(), verify=verify)
        source = random_bytes(8 * PAGE)[source_at : source_at + nbytes]
        place, arena = store.reserve(nbytes), torch.full((8 * PAGE,), 7, dtype=torch.uint8)
        place.write(source)
        place.read(arena[target_at : target_at + nbytes])
        store.close()
    expected = torch.full_like(arena, 7)
    expected[target_at : target_at + nbytes] = source
    assert torch.equal(arena, expected)


@contextmanager
def files_limited_to(nbytes: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_place_in_several_pieces_comes_back_whole(store: DiskStore) -> None:
    """Where the file cannot grow, free bytes that are scattered serve."""
    with files_limited_to(64 * PAGE):
        places = [store.reserve(1) for _ in range(40)]
        del places[::2]
        source, target = random_bytes(43 * PAGE), torch.zeros(43 * PAGE, dtype=torch.uint8)
        place = store.reserve(source.numel())
        assert len(place._lease.extents) > 1
        place.write(source)
        place.read(target)
    assert torch.equal(source, target)


def test_large_tensors_of_several_chunks_come_back(store: DiskStore) -> None:
    assert round_trip(store, 20 * MiB + 12_345)


def test_room_is_given_back_with_the_last_reference(store: DiskStore) -> None:
    place = store.reserve(12_345)
    assert store.used_nbytes == 12_345
    del place
    assert store.used_nbytes == 0


def test_the_file_does_not_grow_when_room_is_reused(store: DiskStore) -> None:
    for _ in range(10):
        round_trip(store, 100_000)
    file = store._file
    assert file is not None
    assert os.fstat(file._descriptor).st_size <= 100_000 + 3 * PAGE


def test_the_file_is_private_has_no_name_and_is_made_at_the_first_reserve(tmp_path: Path) -> None:
    store = DiskStore(tmp_path)
    assert store._file is None
    round_trip(store)
    status = os.fstat(store._file._descriptor)  # type: ignore[union-attr]
    store.close()
    assert (status.st_mode & 0o777, status.st_nlink, list(tmp_path.iterdir())) == (0o600, 0, [])


def test_the_budget_counts_the_bytes_of_tensors_to_the_last_one(tmp_path: Path) -> None:
    store = DiskStore(tmp_path, 10 * 1000)
    places = [store.reserve(1000) for _ in range(10)]
    with pytest.raises(TierFull, match=r"the disk tier has no room for 1 B: 9\.77 KiB of its 9\.77 KiB .*disk_budget"):
        store.reserve(1)
    places.pop()
    assert store.reserve(1000).nbytes == 1000


def test_a_missing_directory_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"nowhere' for the disk tier: it is not a directory"):
        DiskStore(tmp_path / "nowhere")


def test_a_read_only_file_system_is_refused_at_once(small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(InvalidInput, match="it is not writable"):
        DiskStore(small_disk)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_without_permission_is_refused_at_once(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(InvalidInput, match="it is not writable"):
        DiskStore(tmp_path)


def test_a_disk_that_is_too_small_is_full_before_anything_is_written(small_disk: Path) -> None:
    store = DiskStore(small_disk)
    words = r"setting aside 2\.00 MiB for the disk tier in .*small' failed: No space left on device, .* are free"
    with pytest.raises(TierFull, match=words):
        store.reserve(2 * MiB)


def test_room_that_was_set_aside_is_there_when_others_fill_the_disk(small_disk: Path) -> None:
    store = DiskStore(small_disk)
    place, source, target = store.reserve(300_000), random_bytes(300_000), torch.zeros(300_000, dtype=torch.uint8)
    other = small_disk / "other"
    with suppress(OSError):
        other.write_bytes(bytes(2 * MiB))
    assert shutil.disk_usage(small_disk).free == 0
    place.write(source)
    place.read(target)
    assert torch.equal(source, target)
    with pytest.raises(TierFull, match=r"No space left on device, 0 B are free\. Free some space"):
        store.reserve(300_000)
    other.unlink()
    assert round_trip(store, 300_000)


def test_what_is_promised_is_set_aside_at_once_and_counts_for_others(small_disk: Path) -> None:
    one, other = DiskStore(small_disk), DiskStore(small_disk)
    assert one.promisable_nbytes == MiB
    promise = one.promise([100_000] * 4)
    assert promise.padded_nbytes == 4 * (100_000 // PAGE + 2) * PAGE
    assert one.promisable_nbytes == other.promisable_nbytes == MiB - promise.padded_nbytes
    with pytest.raises(TierFull, match="setting aside"):
        other.promise([700_000])
    other.close()
    places = [one.reserve(100_000) for _ in range(4)]
    assert one.promisable_nbytes == MiB - promise.padded_nbytes
    del promise, places
    assert one.promisable_nbytes == MiB


def test_promises_together_keep_to_the_budget(tmp_path: Path) -> None:
    store = DiskStore(tmp_path, 1000)
    promise = store.promise([300, 300])
    with pytest.raises(TierFull, match=r"no room for 500 B: 600 B of its 1000 B are promised to other plans.*Raise"):
        store.promise([500])
    assert store.promisable_nbytes == 400
    del promise
    assert store.promise([500]).nbytes == 500


def test_a_file_system_that_sets_nothing_aside_works_and_the_log_says_so_once(
    disk_without_direct_io: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = DiskStore(disk_without_direct_io)
    assert not measure_disk(disk_without_direct_io, MiB, MiB).is_direct
    promise = store.promise([20_000])
    assert round_trip(store, 20_000)
    assert round_trip(store, 50_000)
    assert [record.levelno for record in caplog.records if "no fallocate" in record.message] == [logging.WARNING]
    assert store.promisable_nbytes is None
    del promise


def test_a_limit_on_the_size_of_files_is_said_by_its_name(store: DiskStore) -> None:
    with files_limited_to(64 * PAGE):
        words = r"larger than 256\.00 KiB \(RLIMIT_FSIZE\).*ulimit -f.*disk_budget below"
        with pytest.raises(TierFull, match=words):
            store.promise([MiB])
        with pytest.raises(TierFull, match=words):
            store.reserve(MiB)
        assert store.promisable_nbytes == 64 * PAGE
        assert round_trip(store, 63 * PAGE)
    assert round_trip(store, MiB)


def test_a_limit_that_comes_later_is_said_by_the_write(tmp_path: Path) -> None:
    store = DiskStore(tmp_path)
    place = store.reserve(2 * MiB)
    with files_limited_to(MiB), pytest.raises(TierFull, match=r"writing .* failed: .*RLIMIT_FSIZE"):
        place.write(random_bytes(2 * MiB))


def test_a_file_system_without_direct_io_works_and_the_log_says_so_once(
    disk_without_direct_io: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = DiskStore(disk_without_direct_io)
    assert round_trip(store, 20_000)
    assert round_trip(store, 20_000)
    store.close()
    assert [record.levelno for record in caplog.records if "no direct I/O" in record.message] == [logging.WARNING]


def test_direct_io_is_used_where_the_file_system_has_it(store: DiskStore, tmp_path: Path) -> None:
    round_trip(store)
    try:
        os.close(os.open(tmp_path, os.O_TMPFILE | os.O_RDWR | os.O_DIRECT, 0o600))
    except OSError:
        pytest.skip("this file system has no direct I/O")
    assert store._file is not None
    assert store._file.is_direct


@pytest.mark.parametrize(("call", "verb"), [("pwritev", "writing"), ("preadv", "reading")])
def test_an_input_output_error_names_tier_bytes_and_the_system_s_words(
    store: DiskStore, monkeypatch: pytest.MonkeyPatch, call: str, verb: str
) -> None:
    def fail(*_: Any) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(TierFailed, match=rf"{verb} \d+\.00 KiB .* the disk tier .* failed: Input/output error"):
            round_trip(store, 2 * PAGE + 1000)
    assert round_trip(store)


@pytest.mark.parametrize("call", ["pwritev", "preadv"])
@pytest.mark.parametrize("is_direct", [True, False])
def test_a_move_that_stops_half_way_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, is_direct: bool
) -> None:
    """The contrivance: each call moves at most five pages and a bit, in however many buffers."""
    whole, num_calls = getattr(os, call), 0

    def short(fd: int, buffers: Any, offset: int) -> int:
        nonlocal num_calls
        num_calls += 1
        left, taken = 5 * PAGE + 512, []
        for buffer in buffers:
            size = min(left, len(buffer))
            taken += [(ctypes.c_char * size).from_buffer(buffer)] if size else []
            left -= size
        return whole(fd, taken, offset)

    if not is_direct:
        monkeypatch.setattr(disk_file, "direct_flag", lambda: 0)
    monkeypatch.setattr(os, call, short)
    assert round_trip(DiskStore(tmp_path), 20 * PAGE + 100)
    assert num_calls >= 4


def test_a_file_that_ends_too_soon_is_a_failure_with_all_numbers(store: DiskStore) -> None:
    place = store.reserve(10 * PAGE)
    place.write(random_bytes(10 * PAGE))
    assert store._file is not None
    os.ftruncate(store._file._descriptor, 3 * PAGE + 100)
    words = r"reading .* failed: only 12288 of \d+ bytes were moved: the file ends at byte 12388"
    with pytest.raises(TierFailed, match=words):
        place.read(torch.empty(10 * PAGE, dtype=torch.uint8))


def test_half_of_a_large_tensor_that_fails_in_the_second_thread_fails_the_whole(
    store: DiskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = os.preadv

    def fail_late(fd: int, buffers: Any, offset: int) -> int:
        if offset >= 16 * MiB:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return whole(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", fail_late)
    with pytest.raises(TierFailed, match="Input/output error"):
        round_trip(store, 32 * MiB)


def flip(descriptor: int, offset: int) -> None:
    """One bit of a file, through a descriptor of our own: the tier's may go around the page cache."""
    with open(f"/proc/self/fd/{descriptor}", "r+b", buffering=0) as file:
        file.seek(offset)
        [byte] = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ 4]))
        os.fsync(file.fileno())


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="the file has no name but there")
@pytest.mark.parametrize("target_at", [0, 64], ids=["straight", "staged"])
@pytest.mark.parametrize("flipped_at", [3 * PAGE, 19 * MiB], ids=["first chunk", "last chunk"])
def test_a_bit_that_has_changed_on_disk_is_noticed(tmp_path: Path, target_at: int, flipped_at: int) -> None:
    store = DiskStore(tmp_path, verify=True)
    source = random_bytes(20 * MiB)
    place, memory = store.reserve(20 * MiB), torch.empty(20 * MiB + PAGE, dtype=torch.uint8)
    begin = (source.data_ptr() - memory.data_ptr() + target_at) % PAGE
    target = memory[begin : begin + 20 * MiB]
    place.write(source)
    place.read(target)
    assert torch.equal(source, target)
    assert store._file is not None
    flip(store._file._descriptor, flipped_at)
    with pytest.raises(
        TierFailed, match=r"came back from the disk tier .* with other bits .* checksum 0x\w{8}, not 0x"
    ):
        place.read(target)
    flip(store._file._descriptor, flipped_at)
    place.read(target)
    assert torch.equal(source, target)


def test_what_was_never_written_is_not_read(store: DiskStore) -> None:
    with pytest.raises(TierFailed, match="never written"):
        store.reserve(100).read(torch.empty(100, dtype=torch.uint8))


def test_a_closed_tier_refuses_in_words(tmp_path: Path) -> None:
    store = DiskStore(tmp_path)
    place = store.reserve(100)
    store.close()
    store.close()
    with pytest.raises(TierFailed, match="disk tier has been closed"):
        place.write(random_bytes(100))
