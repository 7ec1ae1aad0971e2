"""What copies on one stream took, by the device's own clock.

Enters: two moments in the stream, before and after the copies of one map. Leaves: an `ObservedLink`. Nobody waits:
moments are read once the device has passed them, when somebody asks.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from vdnn.hardware.clocks import Clock
from vdnn.hardware.observed_links import ObservedLink

MOST_AHEAD = 256
"""Copies whose moments are kept before the device has passed them: more than a step has."""


class StreamMeter:
    """Without a clock nothing is timed."""

    def __init__(self, tier: str, clock: Clock | None, stream: torch.Stream, *, is_back: bool) -> None:
        self._clock, self._stream, self._seen = clock, stream, ObservedLink(tier, is_back)
        self._ahead: deque[tuple[Any, Any, int]] = deque()
        self._lock = threading.Lock()

    @contextmanager
    def timing(self, nbytes: int) -> Iterator[None]:
        """Around the copies of one map, as they are given to the stream."""
        if self._clock is None:
            yield
            return
        begin = self._moment(self._clock)
        yield
        self._ahead.append((begin, self._moment(self._clock), nbytes))
        if len(self._ahead) > MOST_AHEAD:
            self._read()  # where nobody asks, moments would pile up

    def _moment(self, clock: Clock) -> Any:
        with self._stream:
            return clock.now()

    @property
    def observed(self) -> ObservedLink:
        """Of the copies that are done."""
        self._read()
        return self._seen

    def _read(self) -> None:
        with self._lock:
            while self._clock is not None and self._ahead and self._clock.is_past(self._ahead[0][1]):
                begin, end, nbytes = self._ahead.popleft()
                busy_s, seen = self._clock.seconds(begin, end), self._seen
                self._seen = ObservedLink(
                    seen.tier, seen.is_back, seen.num_copies + 1, seen.nbytes + nbytes, seen.busy_s + busy_s
                )
