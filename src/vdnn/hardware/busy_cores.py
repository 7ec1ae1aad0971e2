"""How much of the cores other processes take: whether a measurement is one of this machine or of a busy moment.

Leaves: a share of all cores between 0 and 1. The one idea: the kernel counts the busy time of all cores (/proc/stat)
and of this process; the difference is what others took. Where there is no /proc/stat nobody is seen.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

_STAT = Path("/proc/stat")
_IDLE_FIELDS = (3, 4)  # proc(5): user nice system idle iowait irq softirq steal
GLANCE_S = 0.1  # ten ticks of the kernel's clock: in less nobody can tell
QUIET_SHARE = 0.05
"""What others may take before a measurement is one of a busy moment. An idle system takes 0.01 itself."""

Share = Callable[[], float]


def others_share() -> Share:
    """From now on: a function that says which share of the cores others have taken since. 0 within `GLANCE_S`."""
    busy, ours, begin = _busy_s(), time.process_time(), time.perf_counter()

    def share() -> float:
        elapsed_s = time.perf_counter() - begin
        others_s = (_busy_s() - busy) - (time.process_time() - ours)
        return 0.0 if elapsed_s < GLANCE_S else min(1.0, max(0.0, others_s / (elapsed_s * (os.cpu_count() or 1))))

    return share


def share_now() -> float:
    share = others_share()
    time.sleep(GLANCE_S)
    return share()


def _busy_s() -> float:
    if not _STAT.exists():
        return 0.0
    fields = [int(field) for field in _STAT.read_text().splitlines()[0].split()[1:9]]
    busy = sum(field for position, field in enumerate(fields) if position not in _IDLE_FIELDS)
    return busy / os.sysconf("SC_CLK_TCK")
