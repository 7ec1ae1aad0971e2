"""Time where a step computes: the host's clock, or events in the device's own queue.

Enters: a device. Leaves: a clock, whose moments are noted now and read later. The one idea: **on an accelerator a
moment is an event between two ops, and nobody waits for it**: the host goes on, and what lies between two moments is
read once the device has passed both.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import Any, Protocol, overload

import torch

from vdnn.hardware.where import CPU

Moment = Any
"""Opaque: whatever a clock returns from `now`."""


class Clock(Protocol):
    def now(self) -> Moment:
        """When all that was asked for so far is done."""
        ...

    def is_past(self, moment: Moment) -> bool: ...

    def seconds(self, begin: Moment, end: Moment) -> float:
        """Between two moments; waits until both are past."""
        ...

    def seconds_of(self, work: Callable[[], object]) -> float:
        """Of all that `work` asks for."""
        begin = self.now()
        work()
        return self.seconds(begin, self.now())


class HostClock(Clock):
    def now(self) -> float:
        return perf_counter()

    def is_past(self, moment: float) -> bool:
        return True

    def seconds(self, begin: float, end: float) -> float:
        return end - begin


class DeviceClock(Clock):
    def __init__(self, where: torch.device) -> None:
        self._where = where

    def now(self) -> torch.Event:
        event = torch.Event(self._where, enable_timing=True)
        event.record(torch.accelerator.current_stream(self._where))
        return event

    def is_past(self, moment: torch.Event) -> bool:
        return bool(moment.query())

    def seconds(self, begin: torch.Event, end: torch.Event) -> float:
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3


def clock_of(where: torch.device) -> Clock:
    return HostClock() if where == CPU else DeviceClock(where)


class Spans(Sequence[float]):
    """Seconds of the last so many stretches, as far as the device has passed them."""

    def __init__(self, clock: Clock, most: int) -> None:
        self._clock, self._known = clock, deque[float](maxlen=most)
        self._ahead: deque[tuple[Moment, Moment]] = deque(maxlen=most)

    def add(self, begin: Moment, end: Moment) -> None:
        self._ahead.append((begin, end))
        self._read()

    def settle(self) -> None:
        """Wait for those that are under way."""
        self._read(wait=True)

    def clear(self) -> None:
        self._known.clear()
        self._ahead.clear()

    def __len__(self) -> int:
        self._read()
        return len(self._known)

    def __iter__(self) -> Iterator[float]:
        self._read()
        return iter(tuple(self._known))

    @overload
    def __getitem__(self, index: int) -> float: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[float]: ...
    def __getitem__(self, index: int | slice) -> float | Sequence[float]:
        self._read()
        return tuple(self._known)[index]

    def _read(self, *, wait: bool = False) -> None:
        while self._ahead and (wait or self._clock.is_past(self._ahead[0][1])):
            self._known.append(self._clock.seconds(*self._ahead.popleft()))
