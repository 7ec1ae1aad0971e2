"""Seconds of a run during which the machine was ours.

Enters: a function. Leaves: how long it took, once no other process took more than a small share of the cores. The one
idea: the kernel counts the busy time of all cores (/proc/stat) and ours (process CPU time); the difference is what
others took. A run beside others is repeated a few times, then the least disturbed one counts, and says so.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

MAX_SHARE = 0.05  # of all cores: what the system itself takes stays below it
_IDLE_FIELDS = (3, 4)  # proc(5): user nice system idle iowait irq softirq steal


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
    busy, ours, begin = _busy_s(), time.process_time(), time.perf_counter()
    run()
    seconds = time.perf_counter() - begin
    others_s = max(0.0, (_busy_s() - busy) - (time.process_time() - ours))
    return QuietRun(seconds, others_s / (seconds * (os.cpu_count() or 1)))


def _busy_s() -> float:
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    busy = sum(field for position, field in enumerate(fields) if position not in _IDLE_FIELDS)
    return busy / os.sysconf("SC_CLK_TCK")
