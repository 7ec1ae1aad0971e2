"""Seconds of a run, and whether other processes kept it from its cores meanwhile.

Enters: a function. Leaves: how long it took, as the middle of several runs that nobody disturbed. The one idea: a
measured cost is remembered for good, so it must not be that of a busy moment. The kernel counts how long each of our
threads was ready and had no core (proc(5), schedstat); on two cores such a run may take tens of milliseconds where the
op takes one tenth, because the other threads of the op wait for the one that stands still.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from vdnn.hardware.clocks import Clock, Moment

_TASKS = Path("/proc/self/task")
HARMLESS_SHARE = 0.02  # of a run: what its threads may have waited for a core

Run = Callable[[], object]


class Timed(Protocol):
    @property
    def seconds(self) -> float: ...

    @property
    def is_disturbed(self) -> bool: ...


class Lap(NamedTuple):
    """A run of the processor."""

    seconds: float
    is_disturbed: bool


class LapInQueue:
    """A run that an accelerator does when it comes to it: its time is read when somebody asks. Whether others kept it
    from the device, the host cannot see."""

    is_disturbed = False

    def __init__(self, clock: Clock, begin: Moment, end: Moment) -> None:
        self._clock, self._begin, self._end = clock, begin, end

    @cached_property
    def seconds(self) -> float:
        return self._clock.seconds(self._begin, self._end)


def lap_in_queue(run: Run, clock: Clock) -> LapInQueue:
    """The same by an accelerator, with its clock."""
    begin = clock.now()
    run()
    return LapInQueue(clock, begin, clock.now())


def lap(run: Run) -> Lap:
    """One run. What it returns is freed inside the measured time, as every op's outputs are freed some time."""
    before_s = _waited_s()
    begin = perf_counter()
    run()
    seconds = perf_counter() - begin
    return Lap(seconds, _waited_s() - before_s > HARMLESS_SHARE * seconds)


def num_quiet(laps: Sequence[Timed]) -> int:
    return sum(not one.is_disturbed for one in laps)


def typical_s(laps: Sequence[Timed]) -> float:
    """The middle of the undisturbed runs; where there are none, the shortest: disturbance only ever lengthens a run."""
    quiet = [one.seconds for one in laps if not one.is_disturbed]
    return median(quiet) if quiet else min(one.seconds for one in laps)


def _waited_s() -> float:
    """How long the threads of this process have been ready without a core, all together. 0 where nobody counts."""
    if not _TASKS.is_dir():
        return 0.0
    return sum(_waited_ns(task) for task in os.listdir(_TASKS)) / 1e9


def _waited_ns(task: str) -> int:
    try:
        with open(f"{_TASKS}/{task}/schedstat") as file:
            return int(file.read().split()[1])
    except (OSError, ValueError, IndexError):  # a thread that has just ended, or a kernel that does not count
        return 0
