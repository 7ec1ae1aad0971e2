"""Who holds which bytes of a tier, from any thread.

Enters: a number of bytes. Leaves: a `Lease`; dropping the last reference to it gives the bytes back. The one idea: a
lease may die anywhere, also inside the garbage collector while this very ledger is locked by the same thread. So a
dying lease takes no lock: it leaves a note in a deque, whose append is atomic, and whoever next looks at the ledger
reads the notes.

A `Promise` is room that a plan will need: it is there before the first step, whoever leases it then.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from vdnn.errors import TierFull
from vdnn.plan.addresses.extents import UNBOUNDED_NBYTES, Extent, Extents
from vdnn.units import format_nbytes


class Lease:
    """`nbytes` of a tier, in `extents` that may be padded to whole pages."""

    __slots__ = ("_returned", "extents", "nbytes")

    def __init__(
        self, nbytes: int, extents: tuple[Extent, ...], returned: deque[tuple[int, tuple[Extent, ...]]]
    ) -> None:
        self.nbytes = nbytes
        self.extents = extents
        self._returned = returned

    def __del__(self) -> None:
        self._returned.append((self.nbytes, self.extents))


class Promise:
    """Room for `nbytes`, which take `padded_nbytes` of the tier, until nobody refers to it any more."""

    __slots__ = ("_returned", "nbytes", "padded_nbytes")

    def __init__(self, nbytes: int, padded_nbytes: int, returned: deque[tuple[int, int]]) -> None:
        self.nbytes = nbytes
        self.padded_nbytes = padded_nbytes
        self._returned = returned

    def __del__(self) -> None:
        self._returned.append((self.nbytes, self.padded_nbytes))


class Ledger:
    """Bounded by `capacity_nbytes`, which counts what is stored; padding to pages comes on top, and is not counted,
    so that a plan that counts the bytes of tensors is a plan that fits. `way_out` ends the message when it is full.
    Places begin at multiples of the page as long as they are asked for in multiples of it.

    `lengthen(begin, end)` gets more of the tier, or raises `TierFull`; then free bytes that are scattered have to
    serve. Without it all of the tier is there from the start."""

    def __init__(
        self,
        tier: str,
        capacity_nbytes: int | None,
        *,
        way_out: str,
        lengthen: Callable[[int, int], None] | None = None,
    ) -> None:
        self.tier = tier
        self.capacity_nbytes = capacity_nbytes
        self._way_out = way_out
        self._used_nbytes = 0
        self._promised_nbytes = self._promised_padded_nbytes = 0
        self._lengthen = lengthen
        whole = UNBOUNDED_NBYTES if capacity_nbytes is None else capacity_nbytes
        self._extents = Extents(whole if lengthen is None else 0)
        self._returned: deque[tuple[int, tuple[Extent, ...]]] = deque()
        self._returned_promises: deque[tuple[int, int]] = deque()
        self._lock = threading.Lock()

    def lease(self, nbytes: int, padded_nbytes: int | None = None) -> Lease:
        wanted = nbytes if padded_nbytes is None else padded_nbytes
        with self._lock:
            self._settle()
            if self.capacity_nbytes is not None and self._used_nbytes + nbytes > self.capacity_nbytes:
                raise self._full(nbytes, self._used_nbytes, self.capacity_nbytes, "used")
            self._make_long_enough(wanted)
            extents = self._extents.allocate(wanted)
            assert extents is not None, "the row was just made long enough"
            self._used_nbytes += nbytes
            return Lease(nbytes, extents, self._returned)

    def promise(self, nbytes: int, padded_nbytes: int) -> Promise:
        """Room for leases to come, beside what was promised to others; `TierFull` when it cannot be had."""
        with self._lock:
            self._settle()
            promised = self._promised_nbytes
            if self.capacity_nbytes is not None and promised + nbytes > self.capacity_nbytes:
                raise self._full(nbytes, promised, self.capacity_nbytes, "promised to other plans")
            if self._lengthen is not None:
                self._grow_to(self._promised_padded_nbytes + padded_nbytes)
            self._promised_nbytes += nbytes
            self._promised_padded_nbytes += padded_nbytes
            return Promise(nbytes, padded_nbytes, self._returned_promises)

    @property
    def used_nbytes(self) -> int:
        with self._lock:
            self._settle()
            return self._used_nbytes

    @property
    def leased_nbytes(self) -> int:
        """Used, with the padding."""
        with self._lock:
            self._settle()
            return self._extents.capacity_nbytes - self._extents.free_nbytes

    @property
    def row_nbytes(self) -> int:
        """How long the row is: what is leased, what is promised, and what was either before."""
        return self._extents.capacity_nbytes

    def unpromised_nbytes(self, more_nbytes: int | None) -> int | None:
        """How much can still be promised if the tier can become longer by `more_nbytes`; None: nothing bounds it."""
        with self._lock:
            self._settle()
            bounds = []
            if self.capacity_nbytes is not None:
                bounds.append(self.capacity_nbytes - self._promised_nbytes)
            if more_nbytes is not None:
                leased = self._extents.capacity_nbytes - self._extents.free_nbytes  # also by those with no promise
                bounds.append(self._extents.capacity_nbytes + more_nbytes - max(leased, self._promised_padded_nbytes))
            return max(0, min(bounds)) if bounds else None

    def _make_long_enough(self, wanted: int) -> None:
        """In one piece if that can be had, else in several."""
        row = self._extents
        if self._lengthen is None:
            row.grow(wanted - row.free_nbytes)
        elif row.largest_hole_nbytes < wanted:
            try:
                self._grow_to(row.capacity_nbytes + wanted - row.free_at_end_nbytes)
            except TierFull:
                self._grow_to(row.capacity_nbytes + wanted - row.free_nbytes)

    def _grow_to(self, end: int) -> None:
        assert self._lengthen is not None
        begin = self._extents.capacity_nbytes
        if end > begin:
            self._lengthen(begin, end)
            self._extents.grow(end - begin)

    def _full(self, nbytes: int, taken_nbytes: int, capacity_nbytes: int, how: str) -> TierFull:
        taken, bound = format_nbytes(taken_nbytes), format_nbytes(capacity_nbytes)
        return TierFull(
            f"the {self.tier} tier has no room for {format_nbytes(nbytes)}: {taken} of its {bound} are {how}."
            f" {self._way_out}"
        )

    def _settle(self) -> None:
        """Take back what dead leases left. New notes may arrive while this runs; they are read too, or next time."""
        while self._returned:
            nbytes, extents = self._returned.popleft()
            self._used_nbytes -= nbytes
            for extent in extents:
                self._extents.release(extent)
        while self._returned_promises:
            nbytes, padded_nbytes = self._returned_promises.popleft()
            self._promised_nbytes -= nbytes
            self._promised_padded_nbytes -= padded_nbytes
