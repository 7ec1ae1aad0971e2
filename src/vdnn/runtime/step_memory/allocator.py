"""The wrapped allocator of one model, as Python calls it.

Enters: the slots of each half. Leaves: the blocks that were asked for (`LoggedBlock`), and counts. A `StepAllocator` is
opened for one model and closed with it; blocks that are alive by then stay valid.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]


class Kind(IntEnum):
    """Where a block lies; the words are those of `csrc/pages.h`."""

    IN_PLACE = 0
    MOVED = 1
    KEPT = 2
    ALONE = 3
    SMALL = 4
    HOLE = 5
    GONE = 6


class LoggedBlock(NamedTuple):
    """A block of the iteration. `begin` and `end` count its allocations and releases; `end` is -1 while it is alive.
    `half` counts the halves, times between two among them; `is_held` says that the caller of the half got it. `offset`
    is its place in the arena, -1 where it has none."""

    nbytes: int
    begin: int
    end: int
    half: int
    is_held: int
    kind: int
    offset: int = -1


@dataclass(frozen=True, slots=True)
class Counts:
    """Of the iteration that runs; `arena_nbytes`, `num_stashed`, `mapped_nbytes` and `between_nbytes` of now.
    `num_stashed` are live blocks that no caller holds, `mapped` lie outside of the arena, `between` were taken between
    two halves."""

    arena_nbytes: int
    num_stashed: int
    num_planned: int
    num_unexpected: int
    unexpected_nbytes: int
    num_moves_refused: int
    mapped_nbytes: int
    mapped_peak_nbytes: int
    between_nbytes: int
    between_peak_nbytes: int


@dataclass(frozen=True, eq=False)
class Slots:
    """What a half is expected to ask for, in the library's own numbers: five of each slot, two of each extent."""

    slots: Numbers
    extents: Numbers


NO_SLOTS = Slots(np.zeros((0, 5), dtype=np.int64), np.zeros((0, 2), dtype=np.int64))


class StepAllocator:
    """`where`: an accelerator's name, or empty for the CPU."""

    def __init__(self, functions: ctypes.PyDLL, where: str = "") -> None:
        self._functions = functions
        self._number = functions.vdnn_step_open_on(where.encode()) if where else functions.vdnn_step_open()
        self._counts = np.zeros(len(Counts.__dataclass_fields__), dtype=np.int64)
        self._counts_address = self._counts.ctypes.data
        weakref.finalize(self, functions.vdnn_step_close, self._number).atexit = False

    def begin_half(self, slots: Slots) -> None:
        self._functions.vdnn_step_begin_half(
            self._number, slots.slots.ctypes.data, len(slots.slots), slots.extents.ctypes.data, len(slots.extents)
        )

    def guide(self, planned: Numbers) -> None:
        """Of the half that this thread has just begun: where blocks lie that nobody has seen yet, four numbers each, in
        the order in which they are taken."""
        self._functions.vdnn_step_guide(planned.ctypes.data, len(planned))

    def at(self, position: int) -> None:
        """This thread's innermost half runs this instruction of its plan."""
        self._functions.vdnn_step_at(position)

    def wants_its_place(self, address: int, number: int) -> bool:
        """Whether the block at this address should lie at the place of this number in the guide: the next one of its
        size will, and is to be exchanged with it."""
        return bool(self._functions.vdnn_step_wants_its_place(address, number))

    def exchange(self, one: int, other: int) -> None:
        """Two storages, by their identity, exchange their memory."""
        self._functions.vdnn_step_exchange(one, other)

    def begin_repeated(self) -> None:
        """A half without a layout, of work that is repeated: what it frees waits for the next time."""
        self._functions.vdnn_step_begin_repeated(self._number)

    def end_half(self, held_addresses: Sequence[int]) -> None:
        addresses = (ctypes.c_int64 * len(held_addresses))(*held_addresses)
        self._functions.vdnn_step_end_half(self._number, ctypes.addressof(addresses), len(held_addresses))

    def begin_between(self, slots: Slots) -> None:
        """From now on, until `end_between`, large blocks of this thread are logged and placed as those of a half."""
        self._functions.vdnn_step_begin_between(
            self._number, slots.slots.ctypes.data, len(slots.slots), slots.extents.ctypes.data, len(slots.extents)
        )

    def end_between(self) -> None:
        """Any thread may say so."""
        self._functions.vdnn_step_end_between(self._number)

    def begin_iteration(self) -> None:
        self._functions.vdnn_step_begin_iteration(self._number)

    def log(self) -> list[LoggedBlock]:
        """Every block of the iteration so far, in the order in which they were asked for."""
        rows = np.zeros((self._functions.vdnn_step_log_length(self._number), len(LoggedBlock._fields)), dtype=np.int64)
        self._functions.vdnn_step_read_log(self._number, rows.ctypes.data, len(rows))
        return [LoggedBlock(*row) for row in rows.tolist()]

    def reserve(self, nbytes: int) -> bool:
        """An arena of so many bytes instead of the one before. False: the system refuses it."""
        return bool(self._functions.vdnn_step_reserve(self._number, nbytes))

    def purge(self) -> None:
        """Give idle pages back to the system, if nothing is stashed; the next iteration faults them in again."""
        self._functions.vdnn_step_purge(self._number)

    def counts(self) -> Counts:
        self._functions.vdnn_step_statistics(self._number, self._counts_address)
        numbers: Any = self._counts.tolist()
        return Counts(*numbers)
