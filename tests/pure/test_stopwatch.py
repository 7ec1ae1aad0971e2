"""Seconds that are remembered are those of undisturbed runs."""

from __future__ import annotations

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


def test_a_run_that_lost_its_core_is_disturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The contrivance: the kernel's count is replaced, because nobody can order a preemption."""
    counts = iter([7, 8])
    monkeypatch.setattr(stopwatch, "_interruptions", lambda: next(counts))
    assert lap(lambda: None).is_disturbed
