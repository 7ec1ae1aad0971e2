"""Seconds of a run during which the machine was ours.

Enters: a function. Leaves: how long it took, while no other process took more than a small share of the cores
(`vdnn/hardware/busy_cores.py`). It waits for a quiet moment, and repeats a run that was disturbed all the same; if
there is none, the least disturbed one counts, and says so. Little is much here: ops wait for the slowest of their
threads, so a neighbour that takes 5 % of two cores may cost 10 % of a step and more.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from vdnn.hardware.busy_cores import others_share, share_now

MAX_SHARE = 0.02  # of all cores: what an idle system itself takes stays below it


@dataclass(frozen=True, slots=True)
class QuietRun:
    seconds: float
    others_share: float

    @property
    def is_quiet(self) -> bool:
        return self.others_share <= MAX_SHARE


def wait_until_quiet(at_most_s: float) -> None:
    """Return in a quiet moment, or when the time is over."""
    end = time.monotonic() + at_most_s
    while share_now() > MAX_SHARE and time.monotonic() < end:
        time.sleep(0.1)


def quiet_run(run: Callable[[], object], *, tries: int = 5, patience_s: float = 20.0) -> QuietRun:
    """The first undisturbed run, or the least disturbed of `tries`; before each it waits for a quiet moment."""
    runs: list[QuietRun] = []
    while len(runs) < tries:
        wait_until_quiet(patience_s)
        runs.append(_timed(run))
        if runs[-1].is_quiet:
            return runs[-1]
    return min(runs, key=lambda one: one.others_share)


def _timed(run: Callable[[], object]) -> QuietRun:
    share, begin = others_share(), time.perf_counter()
    run()
    return QuietRun(time.perf_counter() - begin, share())
