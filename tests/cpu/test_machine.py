"""Measuring this machine, with trials small enough for a test."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from threading import Event
from time import sleep

import pytest
import torch

from larger import larger
from pure.mutations import many, mutated
from vdnn.calibrate import disk_speed
from vdnn.calibrate import this_machine as detect
from vdnn.calibrate.codec_trials import codec_speeds
from vdnn.calibrate.copies_beside_compute import disk_transfers, measure_beside
from vdnn.calibrate.disk_speed import CHUNK_NBYTES, measure_disk, open_unnamed
from vdnn.calibrate.machine_speeds import Measurements, TrialSizes, hardware_from, measure_machine
from vdnn.calibrate.this_machine import this_machine
from vdnn.codecs import CODECS
from vdnn.errors import InvalidInput, TierFailed
from vdnn.hardware.machine import file_system_of, fingerprint
from vdnn.options import Options
from vdnn.reading.fields import of
from vdnn.runtime.runtime import shared_runtime
from vdnn.units import MiB

TINY = TrialSizes(
    gemm_dim=64, conv_batch=1, copy_nbytes=MiB, disk_nbytes=CHUNK_NBYTES, repeats=1, beside_s=0.01, beside_rounds=1
)


@pytest.fixture(scope="module")
def trial_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("disk")


@pytest.fixture(scope="module")
def measurements(trial_directory: Path) -> Measurements:
    return measure_machine(trial_directory, TINY)


@cache
def without_disk() -> Measurements:
    return measure_machine(None, TINY)


@pytest.fixture
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Caches and disk trials of this test stay in its own folder, and trials are tiny."""
    monkeypatch.setenv("VDNN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("VDNN_DISK_DIR", str(tmp_path))
    monkeypatch.setattr(detect, "QUICK", TINY)
    monkeypatch.setattr(shared_runtime(), "machines_looked_at", set())
    monkeypatch.setattr(detect, "share_now", lambda: 1.0)  # tests run side by side: nobody measures a second time
    return tmp_path


def test_every_rate_is_positive(measurements: Measurements):
    rates = {name: value for name, value in measurements.to_json().items() if name.endswith(("_per_s", "_s", "nbytes"))}
    assert len(rates) == 6
    assert all(codec.encode_bytes_per_s > 0 and codec.decode_bytes_per_s > 0 for codec in measurements.codecs)
    assert all(rate > 0 for rate in rates.values())


def test_a_codec_that_its_sample_does_not_suit_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(CODECS, "blocks", CODECS["sparse"])  # `_sample` gives one of this name no density
    with pytest.raises(AssertionError, match=r"'blocks' cannot encode the sample that `_sample` made: float32, \(\)"):
        codec_speeds()


def test_nothing_is_left_in_the_directory(trial_directory: Path, measurements: Measurements):
    assert list(trial_directory.iterdir()) == []


def test_json_and_back_is_the_same(measurements: Measurements):
    assert of(Measurements).read(json.loads(json.dumps(measurements.to_json())), "") == measurements


def test_as_hardware_ram_is_the_device_and_the_disk_is_linked_both_ways(measurements: Measurements):
    hardware = hardware_from(measurements)
    assert [tier.name for tier in hardware.tiers] == ["device", "disk"]
    assert {link.name for link in hardware.links} == {"device->disk", "disk->device"}
    assert hardware.device.nbytes == measurements.ram_nbytes


def test_the_links_are_those_beside_compute(measurements: Measurements):
    assert measurements.write is not None
    assert measurements.read is not None
    out, back = hardware_from(measurements).links
    assert (out.bandwidth_bytes_per_s, out.drag) == (measurements.write.bandwidth_bytes_per_s, measurements.write.drag)
    assert (back.bandwidth_bytes_per_s, back.drag) == (measurements.read.bandwidth_bytes_per_s, measurements.read.drag)


def test_without_copies_beside_compute_the_links_are_those_of_an_idle_machine(measurements: Measurements):
    idle = replace(measurements, write=None, read=None)
    assert idle.disk is not None
    out, back = hardware_from(idle).links
    assert (out.bandwidth_bytes_per_s, out.drag) == (idle.disk.write_bytes_per_s, 0.0)
    assert (back.bandwidth_bytes_per_s, back.drag) == (idle.disk.read_bytes_per_s, 0.0)


def test_without_a_directory_there_is_one_tier():
    assert [tier.name for tier in hardware_from(without_disk()).tiers] == ["device"]


def test_a_missing_directory_is_refused_in_words(tmp_path: Path):
    with pytest.raises(InvalidInput, match=r"nowhere' for the disk tier: it is not a directory.*VDNN_DISK_DIR"):
        measure_machine(tmp_path / "nowhere", TINY)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_that_cannot_be_written_is_refused_in_words(tmp_path: Path):
    tmp_path.chmod(0o500)
    with pytest.raises(InvalidInput, match="it is not writable"):
        measure_disk(tmp_path, CHUNK_NBYTES)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no /proc, which takes no files from anybody")
def test_a_file_system_without_files_of_ours_is_refused_in_words():
    with pytest.raises(TierFailed, match="no file can be made in /proc: No such file"):
        measure_disk("/proc", 1)


def test_a_directory_with_too_little_space_is_refused_with_both_numbers(tmp_path: Path):
    with pytest.raises(InvalidInput, match=r"1024\.00 TiB are needed and .* are free"):
        measure_disk(tmp_path, 2**50)


def test_the_trial_file_is_private_and_has_no_name(tmp_path: Path):
    descriptor = open_unnamed(tmp_path, 0)
    status = os.fstat(descriptor)
    os.close(descriptor)
    assert (status.st_mode & 0o777, status.st_nlink, list(tmp_path.iterdir())) == (0o600, 0, [])


def test_without_unnamed_files_the_name_is_removed_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    descriptor = open_unnamed(tmp_path, 0)
    status = os.fstat(descriptor)
    os.close(descriptor)
    assert (status.st_mode & 0o777, status.st_nlink, list(tmp_path.iterdir())) == (0o600, 0, [])


def test_a_system_without_direct_io_is_measured_buffered_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(os, "O_DIRECT", raising=False)
    disk = measure_disk(tmp_path, CHUNK_NBYTES)
    assert not disk.is_direct
    assert disk.read_bytes_per_s > 0


def test_a_file_system_that_refuses_direct_io_is_measured_buffered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The directory's file system may well take direct I/O; an impossible flag makes it answer as one that does not."""
    monkeypatch.setattr(disk_speed, "direct_flag", lambda: os.O_DIRECTORY | os.O_CREAT)
    assert not measure_disk(tmp_path, CHUNK_NBYTES).is_direct


def test_a_second_look_at_this_machine_does_not_measure(own_folders: Path, monkeypatch: pytest.MonkeyPatch):
    first = this_machine()
    monkeypatch.setattr(detect, "QUICK", None)  # measuring would fail
    assert this_machine() == first


def test_another_number_of_threads_is_another_machine(own_folders: Path, monkeypatch: pytest.MonkeyPatch):
    first, threads = this_machine(), torch.get_num_threads()
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads + 1)
    this_machine()
    monkeypatch.undo()
    monkeypatch.setenv("VDNN_CACHE_DIR", str(own_folders / "cache"))
    monkeypatch.setenv("VDNN_DISK_DIR", str(own_folders))
    monkeypatch.setattr(detect, "QUICK", None)  # measuring would fail
    assert this_machine() == first


def measured_with(others_share: float, known: Measurements) -> Measurements:
    """The more others took of the cores, the slower a call."""
    return replace(known, others_share=others_share, launch_s=(1 + others_share) * known.launch_s)


def test_speeds_of_a_busy_moment_are_measured_again_in_a_quiet_one(
    own_folders: Path, monkeypatch: pytest.MonkeyPatch, measurements: Measurements
):
    shares = iter([0.8, 0.02])
    monkeypatch.setattr(detect, "_measure", lambda _: measured_with(next(shares), measurements))
    monkeypatch.setattr(detect, "share_now", lambda: 0.0)
    first, second, third = this_machine(), this_machine(), this_machine()
    assert second != first
    assert third == second


def test_a_busy_moment_keeps_what_is_remembered(
    own_folders: Path, monkeypatch: pytest.MonkeyPatch, measurements: Measurements
):
    monkeypatch.setattr(detect, "_measure", lambda _: measured_with(0.8, measurements))
    monkeypatch.setattr(detect, "share_now", lambda: 0.9)
    assert this_machine() == this_machine()


def test_a_damaged_file_of_measurements_is_replaced_by_one_that_nobody_else_reads(own_folders: Path):
    saved = own_folders / "cache" / "machine-v3.json"
    saved.parent.mkdir()
    saved.write_text('{"machine": ')
    hardware = this_machine()
    assert this_machine() == hardware
    assert saved.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("count", [100, *larger(500)])
def test_mutated_measurements_make_a_machine_or_are_forgotten(
    count: int, tmp_path: Path, measurements: Measurements
) -> None:
    path, num_read = tmp_path / "machine.json", 0
    for chance in many(count, seed=6):
        path.write_text(json.dumps(mutated({"here": measurements.to_json()}, chance)))
        for read in detect._load(path, detect._MACHINES, hardware_from).values():
            num_read += 1
            assert hardware_from(read).device.nbytes is not None
    assert 0 < num_read < count


def test_without_a_usable_disk_the_machine_has_one_tier_and_the_log_says_why(
    own_folders: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setenv("VDNN_DISK_DIR", str(own_folders / "nowhere"))
    with caplog.at_level(logging.WARNING, logger="vdnn"):
        hardware = this_machine()
    assert [tier.name for tier in hardware.tiers] == ["device"]
    assert "planning without a disk tier" in caplog.text


def test_a_directory_on_the_same_disk_is_known_already(own_folders: Path, monkeypatch: pytest.MonkeyPatch):
    first, other = this_machine(), own_folders / "other"
    other.mkdir()
    monkeypatch.setattr(detect, "QUICK", None)  # measuring would fail
    assert this_machine(str(other)) == first


def mounted_tmpfs(where: Path, nbytes: int) -> Iterator[Path]:
    where.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={nbytes}", "tmpfs", str(where)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("cannot mount a tmpfs here")
    yield where
    subprocess.run(["umount", "-l", str(where)], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    yield from mounted_tmpfs(tmp_path / "small", MiB)


def test_another_disk_is_measured_alone_and_with_what_fits_on_it(
    own_folders: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch
):
    first = this_machine()
    monkeypatch.setattr(detect, "measure_machine", None)  # measuring the rest again would fail
    other = this_machine(str(small_disk))
    assert replace(other, links=(), sources=()) == replace(first, links=(), sources=())
    assert [link.name for link in other.links] == ["device->disk", "disk->device"]
    assert other.links != first.links
    assert str(small_disk) in dict(other.sources)["device->disk"]
    assert this_machine(str(small_disk)).links != other.links  # so small a trial is not remembered
    monkeypatch.setattr(detect, "QUICK", None)  # measuring would fail
    assert this_machine() == first


def test_a_named_directory_that_cannot_be_used_is_refused(own_folders: Path):
    with pytest.raises(InvalidInput, match=r"nowhere' for the disk tier: it is not a directory"):
        this_machine(str(own_folders / "nowhere"))


def test_who_plans_for_this_machine_has_what_is_free_on_its_disk_now(own_folders: Path, small_disk: Path):
    asked = Options(spill_dir=str(small_disk))
    assert asked.machine.tier("disk").nbytes is None
    assert asked.on_known_machine().machine.tier("disk").nbytes == MiB
    (small_disk / "other").write_bytes(bytes(MiB // 2))
    assert asked.on_known_machine().machine.tier("disk").nbytes == MiB // 2
    assert replace(asked, disk_budget="1000B").on_known_machine().machine.tier("disk").nbytes == 1000
    assert asked.on_known_machine(runs=True).machine.tier("disk").nbytes is None


def test_disks_are_known_by_their_device_or_by_where_they_are_mounted(small_disk: Path, tmp_path: Path):
    assert file_system_of(small_disk) == f"tmpfs at {small_disk}"
    assert file_system_of(tmp_path) == file_system_of(tmp_path.parent) != file_system_of(small_disk)


def test_the_fingerprint_changes_with_the_number_of_threads():
    threads = torch.get_num_threads()
    before = fingerprint()
    torch.set_num_threads(threads + 1)
    try:
        assert fingerprint() != before
    finally:
        torch.set_num_threads(threads)


class PacedCopies:
    """Copies that take a known time and no core."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def send(self, source: torch.Tensor, tier: str) -> None:
        pass

    def wait_sent(self, ticket: None) -> None:
        sleep(self.seconds)

    def fetch(self, ticket: None, target: torch.Tensor) -> None:
        pass

    def wait_fetched(self, ticket: None) -> None:
        sleep(self.seconds)


def test_copies_that_only_wait_have_no_drag():
    kernel = partial(sleep, 0.001)
    out, _ = measure_beside(PacedCopies(0.005), "disk", kernel, seconds=0.05, rounds=3)
    assert out.drag < 0.3


def test_compute_that_is_slower_while_copies_run_is_drag():
    """The contrivance: the kernel takes four times as long while a copy is under way, which is nearly always."""
    under_way = Event()

    class Announced(PacedCopies):
        def wait_sent(self, ticket: None) -> None:
            under_way.set()
            sleep(self.seconds)
            under_way.clear()

    def kernel() -> None:
        sleep(0.008 if under_way.is_set() else 0.002)

    out, _ = measure_beside(Announced(0.02), "disk", kernel, seconds=0.1, rounds=3)
    assert 0.3 < out.drag < 1


def test_the_trial_leaves_nothing_in_the_directory(tmp_path: Path):
    with disk_transfers(tmp_path) as transfers:
        measure_beside(transfers, "disk", lambda: None, seconds=0.01, rounds=1)
    assert list(tmp_path.iterdir()) == []
