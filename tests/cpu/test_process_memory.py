"""The kernel's figure for the peak of a process."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from vdnn.errors import Unsupported
from vdnn.runtime import process_memory
from vdnn.runtime.process_memory import ProcessPeak, child_peak, in_child, in_default_child, peak_of

MB = 1_000_000


def _nothing() -> None:
    pass


def _allocate_and_free(nbytes: int) -> None:
    import torch

    torch.ones(nbytes, dtype=torch.uint8)


def _twice_in_turn(nbytes: int) -> None:
    _allocate_and_free(nbytes)
    _allocate_and_free(nbytes)


def _torch_loaded_then_peaks(nbytes: int) -> list[int]:
    _allocate_and_free(1)
    return [peak_of(partial(allocate, nbytes)).delta_nbytes for allocate in (_allocate_and_free, _twice_in_turn)]


def _convolution_peak_and_workspace() -> tuple[int, int]:
    """Bytes the process grew in one convolution, and bytes that its output and its workspace account for."""
    import torch

    from vdnn.cost.op_memory import workspace_nbytes

    images, weight = torch.randn(8, 64, 112, 112), torch.randn(64, 64, 3, 3)

    def run() -> torch.Tensor:
        return torch.conv2d(images, weight, padding=1)

    accounted = run().nbytes + workspace_nbytes(run)
    return peak_of(run).delta_nbytes, accounted


def _peak_after_churn() -> int:
    """Leaves 20 holes of 4 MB in the heap of an allocator that has not been told to map blocks on their own."""
    _allocate_and_free(16 * MB)  # freeing a mapped block is how glibc learns to put blocks of that size on its heap
    blocks = _blocks(40, 4 * MB)
    kept = blocks[::2]
    del blocks
    grown = peak_of(_twenty_small_blocks_then_one_of_their_size).delta_nbytes
    assert len(kept) == 20
    return grown


def _twenty_small_blocks_then_one_of_their_size() -> None:
    _blocks(20, 3 * MB)
    _allocate_and_free(60 * MB)


def _blocks(count: int, nbytes: int) -> list[object]:
    import torch

    return [torch.ones(nbytes, dtype=torch.uint8) for _ in range(count)]


def _process_id() -> int:
    return os.getpid()


def _fail() -> None:
    raise ValueError("from the child")


def _be_killed_with_a_lock() -> None:
    """As a limit kills a child in which a library has made one."""
    lock = multiprocessing.RLock()
    with lock:
        os.kill(os.getpid(), signal.SIGKILL)


def _survive_a_child_that_is_killed() -> None:
    with suppress(BrokenProcessPool):
        in_default_child(_be_killed_with_a_lock)


@pytest.fixture(scope="module")
def peak_of_nothing() -> ProcessPeak:
    """Skips, and says why, where the kernel or the C library cannot do it."""
    try:
        return child_peak(_nothing)
    except Unsupported as error:
        pytest.skip(str(error))


supported = pytest.mark.usefixtures("peak_of_nothing")


@supported
def test_200_mb_show_as_200_mb_whether_they_are_allocated_once_or_twice_in_turn():
    assert in_child(_torch_loaded_then_peaks, 200 * MB) == pytest.approx([200 * MB] * 2, rel=0.02)


@supported
def test_what_was_allocated_and_freed_before_does_not_show_in_the_peak():
    """Note: [The settings come first]"""
    assert in_child(_peak_after_churn) == pytest.approx(60 * MB, rel=0.02)


@supported
def test_the_workspace_of_a_convolution_is_what_the_process_grows_by():
    """Note: [What the allocator's events see]"""
    grown, accounted = in_child(_convolution_peak_and_workspace)
    assert grown == pytest.approx(accounted, rel=0.02)


def test_a_call_that_allocates_nothing_has_no_peak_of_its_own(peak_of_nothing: ProcessPeak):
    assert peak_of_nothing.delta_nbytes < MB


@supported
def test_the_peak_is_the_size_before_plus_what_was_added():
    peak = child_peak(_allocate_and_free, 50 * MB)
    assert peak.peak_nbytes == peak.before_nbytes + peak.delta_nbytes
    assert peak.delta_nbytes > 50 * MB


def test_a_child_is_another_process():
    assert in_child(_process_id) != os.getpid()


def test_an_error_of_the_child_arrives():
    with pytest.raises(ValueError, match="from the child"):
        in_child(_fail)


def test_a_system_without_a_resettable_peak_is_refused_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(process_memory, "_CLEAR_REFS", tmp_path / "no proc here" / "clear_refs")
    monkeypatch.setattr(process_memory, "return_freed_memory", _nothing)  # its settings would stay for later tests
    with pytest.raises(Unsupported, match=r"clear_refs cannot be written \(No such file or directory\)"):
        peak_of(_nothing)


def test_a_child_that_is_killed_leaves_no_words_about_its_locks() -> None:
    """They are said when the first process ends."""
    script = f"from {__name__} import _survive_a_child_that_is_killed as survive; survive()"
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    ended = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert ended.stderr == ""
