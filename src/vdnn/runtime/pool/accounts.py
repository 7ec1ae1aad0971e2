"""One account of all storages in a pool: how many bytes are in which state, and how many have moved each way.

Enters: changes of state, from any thread. Leaves: sums. A storage may die anywhere, also inside the garbage collector
while these very sums are being read by the same thread; so a change is a note in a deque, whose append is atomic, and
whoever looks reads the notes first (as in `runtime/tiers/ledger.py`).
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass

from vdnn.runtime.pool.states import ON_DEVICE, State

UNREAD_NOTES = 1024  # notes that may pile up before a writer reads them; bounds memory where nobody ever asks


@dataclass(frozen=True, slots=True)
class Note:
    """A storage changed its state, and with it perhaps its size (an encoded one is shorter)."""

    before: State | None
    before_nbytes: int
    after: State
    after_nbytes: int


class Accounts:
    def __init__(self) -> None:
        self._notes: deque[Note] = deque()
        self._nbytes = dict.fromkeys(State, 0)
        self._num = dict.fromkeys(State, 0)
        self._lock = threading.Lock()

    def note(self, before: State | None, before_nbytes: int, after: State, after_nbytes: int) -> None:
        self._notes.append(Note(before, before_nbytes, after, after_nbytes))
        if len(self._notes) > UNREAD_NOTES and self._lock.acquire(blocking=False):
            try:
                self._read_notes()
            finally:
                self._lock.release()

    def nbytes(self, state: State) -> int:
        with self._lock:
            self._read_notes()
            return self._nbytes[state]

    def num(self, state: State) -> int:
        """How many storages are in this state. For GONE: how many have ever gone."""
        with self._lock:
            self._read_notes()
            return self._num[state]

    @property
    def device_nbytes(self) -> int:
        """Bytes of the device that storages of the pool take."""
        with self._lock:
            self._read_notes()
            return sum(self._nbytes[state] for state in ON_DEVICE)

    def _read_notes(self) -> None:
        while self._notes:
            note = self._notes.popleft()
            if note.before is not None:
                self._nbytes[note.before] -= note.before_nbytes
                self._num[note.before] -= 1
            self._nbytes[note.after] += note.after_nbytes
            self._num[note.after] += 1
