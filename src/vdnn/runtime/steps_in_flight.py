"""The steps of one executor that are alive: how many at once, and which of them were left without a backward.

Enters: steps as their forward begins and ends, and as their backward begins. Leaves: counts, for the account of what is
alive beside a step. The one idea: nothing here holds a step. One whose handle is gone (its output was dropped) is no
longer there, and where it was alive while another forward ran, the backward of that one hears of it.
"""

from __future__ import annotations

import threading
import weakref

from vdnn.runtime.running_step import Step


class StepsInFlight:
    """Threads may share it."""

    def __init__(self) -> None:
        self._alive: weakref.WeakSet[Step] = weakref.WeakSet()
        self._waiting: weakref.WeakSet[Step] = weakref.WeakSet()  # for a backward that has not begun
        self._most_waiting = 0  # since a backward began
        self._lock = threading.RLock()  # garbage may be collected while it is held

    def __len__(self) -> int:
        return len(self._alive)

    def steps(self) -> list[Step]:
        with self._lock:
            return list(self._alive)

    def begins(self, step: Step) -> None:
        """Its forward."""
        with self._lock:
            self._alive.add(step)

    def waits(self, step: Step) -> None:
        """Its forward is over, without an error."""
        with self._lock:
            self._waiting.add(step)
            self._most_waiting = max(self._most_waiting, len(self._waiting))

    def num_left(self, step: Step) -> int:
        """Its backward begins: how many others waited for theirs while a forward ran, and are gone without."""
        with self._lock:
            num_left = max(self._most_waiting - len(self._waiting), 0)
            self._waiting.discard(step)
            self._most_waiting = len(self._waiting)
            return num_left
