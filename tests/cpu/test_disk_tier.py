"""The disk tier: bytes come back whatever their alignment, and every fault is one clear error."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from random_examples import examples
from vdnn.errors import InvalidInput, TierFailed, TierFull
from vdnn.runtime.tiers import disk as disk_module
from vdnn.runtime.tiers import disk_file
from vdnn.runtime.tiers.disk import DiskStore
from vdnn.units import MiB

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
@given(nbytes=st.integers(0, 5 * PAGE), source_at=positions, target_at=positions, is_direct=st.booleans())
def test_bytes_come_back_into_any_alignment_and_touch_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, nbytes: int, source_at: int, target_at: int, is_direct: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if not is_direct:
            patch.setattr(disk_file, "direct_flag", lambda: 0)
        patch.setattr(disk_module, "CHUNK_NBYTES", 2 * PAGE)
        store = DiskStore(tmp_path_factory.getbasetemp())
        source = random_bytes(8 * PAGE)[source_at : source_at + nbytes]
        place, arena = store.reserve(nbytes), torch.full((8 * PAGE,), 7, dtype=torch.uint8)
        place.write(source)
        place.read(arena[target_at : target_at + nbytes])
        store.close()
    expected = torch.full_like(arena, 7)
    expected[target_at : target_at + nbytes] = source
    assert torch.equal(arena, expected)


def test_a_place_in_several_pieces_comes_back_whole(tmp_path: Path) -> None:
    store = DiskStore(tmp_path, 64 * PAGE)
    places = [store.reserve(1) for _ in range(40)]
    del places[::2]
    source, target = random_bytes(44 * PAGE), torch.zeros(44 * PAGE, dtype=torch.uint8)
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
    with pytest.raises(TierFull, match=r"the disk tier has no room for 2\.00 MiB: .*small' has .* free"):
        store.reserve(2 * MiB)


def test_a_disk_that_others_fill_is_full_in_words_and_works_again_when_they_leave(small_disk: Path) -> None:
    store = DiskStore(small_disk)
    place = store.reserve(300_000)
    other = small_disk / "other"
    other.write_bytes(bytes(900_000))
    with pytest.raises(TierFull, match=r"writing .* to the disk tier .* failed: .*Free some space"):
        place.write(random_bytes(300_000))
    other.unlink()
    assert round_trip(store, 300_000)


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
def test_a_short_move_is_a_failure_with_both_numbers(
    store: DiskStore, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    whole = getattr(os, call)
    monkeypatch.setattr(os, call, lambda fd, buffers, offset: whole(fd, buffers, offset) - 512)
    with pytest.raises(TierFailed, match=r"only \d+ of \d+ bytes were moved"):
        round_trip(store)


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
