"""Seconds that are remembered are those of undisturbed runs."""

from __future__ import annotations

import os
from pathlib import Path
from threading import Thread
from time import perf_counter, sleep

import pytest

from vdnn.cost import stopwatch
from vdnn.cost.stopwatch import Lap, lap, typical_s


def test_disturbed_runs_do_not_count() -> None:
    assert typical_s([Lap(1.0, False), Lap(9.0, True), Lap(3.0, False), Lap(2.0, False), Lap(8.0, True)]) == 2.0


def test_when_all_were_disturbed_the_shortest_counts() -> None:
    assert typical_s([Lap(9.0, True), Lap(3.0, True), Lap(8.0, True)]) == 3.0


def test_a_lap_takes_as_long_as_its_run() -> None:
    begin = perf_counter()
    one = lap(lambda: sleep(0.01))
    assert 0.01 <= one.seconds <= perf_counter() - begin


def test_a_run_whose_threads_waited_for_a_core_is_disturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The contrivance: the kernel's count is replaced, because nobody can order a busy machine."""
    waited_s = iter([1.0, 1.5])
    monkeypatch.setattr(stopwatch, "_waited_s", lambda: next(waited_s))
    assert lap(lambda: None).is_disturbed


def test_a_run_whose_threads_had_their_cores_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopwatch, "_waited_s", lambda: 1.0)
    assert not lap(lambda: None).is_disturbed


def test_the_kernel_counts_threads_that_wait_for_a_core() -> None:
    """Two busy threads on one core: each is ready while the other runs."""
    if not hasattr(os, "sched_setaffinity") or not Path("/proc/self/schedstat").exists():
        pytest.skip("only Linux counts, and only Linux binds threads to cores")
    core = {min(os.sched_getaffinity(0))}
    end = perf_counter() + 0.2

    def work() -> None:
        os.sched_setaffinity(0, core)
        while perf_counter() < end:
            sum(range(1000))

    threads = [Thread(target=work) for _ in range(2)]
    before_s = stopwatch._waited_s()
    for thread in threads:
        thread.start()
    sleep(0.15)
    assert stopwatch._waited_s() > before_s
    for thread in threads:
        thread.join()
