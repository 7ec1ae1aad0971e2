"""Page-locked memory that maps pass through on their way to disk and back, within a bound.

Enters: how much a map needs. Leaves: memory for it, whose end is its last reference. torch keeps what is freed and
hands it out again in whole powers of two once copies to and from it are done; so what it has locked is, of every size,
the most that was in use at once. That is what is counted here, and given back to the system where another size needs
the room. What finds none is ordinary memory: a copy that waits, and no byte more that is locked.
"""

from __future__ import annotations

import weakref
from collections import Counter, deque
from collections.abc import Callable

import torch

from vdnn.hardware.clocks import Clock
from vdnn.hardware.page_locked import TRANSIT_NBYTES
from vdnn.runtime.transfers.stream_ops import StreamEvent
from vdnn.torch_private import without_torch_dispatch


class TransitMemory:
    """`memory` makes some, page-locked if that can be had; without a `clock` copies are over at once. Called by the
    thread that trains; what was handed out may end in any."""

    def __init__(
        self, clock: Clock | None, memory: Callable[[int], torch.Tensor], most_nbytes: int = TRANSIT_NBYTES
    ) -> None:
        self.most_nbytes = most_nbytes
        self._clock, self._memory = clock, memory
        self._in_use: Counter[int] = Counter()
        self._made: Counter[int] = Counter()
        self._ended: deque[int] = deque()  # a note takes no lock: memory may end inside the garbage collector
        self._read: deque[tuple[torch.Tensor, StreamEvent]] = deque()

    def has_room(self, nbytes: int) -> bool:
        self._settle()
        size = _rounded(nbytes)
        locked_nbytes = sum(size * number for size, number in self._made.items())
        return self._in_use[size] < self._made[size] or locked_nbytes + size <= self.most_nbytes

    def take(self, nbytes: int) -> torch.Tensor:
        if not self.has_room(nbytes):
            self._give_back()
        if not self.has_room(nbytes):
            with without_torch_dispatch():
                return torch.empty(nbytes, dtype=torch.uint8, device="cpu")
        size = _rounded(nbytes)
        whole = self._memory(size)
        self._in_use[size] += 1
        self._made[size] = max(self._made[size], self._in_use[size])
        weakref.finalize(whole.untyped_storage(), self._ended.append, size).atexit = False
        with without_torch_dispatch():
            return whole[:nbytes]

    def read_until(self, transit: torch.Tensor, event: StreamEvent) -> None:
        """A copy reads it until then: it is not free before."""
        self._read.append((transit, event))

    def _settle(self) -> None:
        while self._read and (self._clock is None or self._clock.is_past(self._read[0][1])):
            self._read.popleft()
        while self._ended:
            self._in_use[self._ended.popleft()] -= 1

    def _give_back(self) -> None:
        if torch.accelerator.is_available():
            torch.accelerator.empty_host_cache()
        self._made = +self._in_use


def _rounded(nbytes: int) -> int:
    return 1 << max(nbytes - 1, 0).bit_length()
