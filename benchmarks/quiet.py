"""Seconds of a run during which the machine was ours.

Enters: a function. Leaves: how long it took, once no other process took more than a small share of the cores
(`vdnn/hardware/neighbours.py`). A run beside others is repeated a few times, then the least disturbed one counts, and
says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from vdnn.hardware.neighbours import others_share

MAX_SHARE = 0.05  # of all cores: what the system itself takes stays below it


@dataclass(frozen=True, slots=True)
class QuietRun:
    seconds: float
    others_share: float

    @property
    def is_quiet(self) -> bool:
        return self.others_share <= MAX_SHARE


def quiet_run(run: Callable[[], object], tries: int = 4) -> QuietRun:
    """The first undisturbed run, or the least disturbed of `tries`."""
    runs: list[QuietRun] = []
    while len(runs) < tries:
        runs.append(_timed(run))
        if runs[-1].is_quiet:
            return runs[-1]
    return min(runs, key=lambda one: one.others_share)


def _timed(run: Callable[[], object]) -> QuietRun:
    share, begin = others_share(), time.perf_counter()
    run()
    return QuietRun(time.perf_counter() - begin, share())
