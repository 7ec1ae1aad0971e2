"""Seconds of a run, and whether another process took a core away meanwhile.

Enters: a function. Leaves: how long it took, as the middle of several runs that nobody disturbed. The one idea: a
measured cost is remembered for good, so it must not be that of a busy moment. When the kernel takes a core from one of
our threads to give it to somebody else it counts that (`ru_nivcsw`), and on two cores such a run may take tens of
milliseconds where the op takes one tenth, because the other threads of the op wait for the one that stands still.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import NamedTuple

try:
    import resource
except ImportError:  # not a Unix: every run counts as undisturbed
    resource = None  # type: ignore[assignment]

Run = Callable[[], object]


class Lap(NamedTuple):
    seconds: float
    is_disturbed: bool


def lap(run: Run) -> Lap:
    """One run. What it returns is freed inside the measured time, as every op's outputs are freed some time."""
    before = _interruptions()
    begin = perf_counter()
    run()
    seconds = perf_counter() - begin
    return Lap(seconds, _interruptions() > before)


def typical_s(laps: list[Lap]) -> float:
    """The middle of the undisturbed runs; where there are none, the shortest: disturbance only ever lengthens a run."""
    quiet = [one.seconds for one in laps if not one.is_disturbed]
    return median(quiet) if quiet else min(one.seconds for one in laps)


def _interruptions() -> int:
    return 0 if resource is None else resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
