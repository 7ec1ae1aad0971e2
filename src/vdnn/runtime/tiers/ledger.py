"""Who holds which bytes of a tier, from any thread.

Enters: a number of bytes. Leaves: a `Lease`; dropping the last reference to it gives the bytes back. The one idea: a
lease may die anywhere, also inside the garbage collector while this very ledger is locked by the same thread. So a
dying lease takes no lock: it leaves a note in a deque, whose append is atomic, and whoever next looks at the ledger
reads the notes.
"""

from __future__ import annotations

import threading
from collections import deque

from vdnn.errors import TierFull
from vdnn.runtime.tiers.extents import UNBOUNDED_NBYTES, Extent, Extents
from vdnn.runtime.tiers.raw_memory import round_up
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


class Ledger:
    """Bounded by `capacity_nbytes`, which counts what is stored; padding to pages comes on top, and is not counted,
    so that a plan that counts the bytes of tensors is a plan that fits. `way_out` ends the message when it is full.
    Places begin at multiples of `page_nbytes` as long as they are asked for in multiples of it."""

    def __init__(self, tier: str, capacity_nbytes: int | None, *, way_out: str, page_nbytes: int = 1) -> None:
        self.tier = tier
        self.capacity_nbytes = capacity_nbytes
        self._way_out = way_out
        self._used_nbytes = 0
        capacity_nbytes = UNBOUNDED_NBYTES if capacity_nbytes is None else capacity_nbytes
        self._extents = Extents(round_up(capacity_nbytes, page_nbytes))
        self._returned: deque[tuple[int, tuple[Extent, ...]]] = deque()
        self._lock = threading.Lock()

    def lease(self, nbytes: int, padded_nbytes: int | None = None) -> Lease:
        with self._lock:
            self._settle()
            if self.capacity_nbytes is not None and self._used_nbytes + nbytes > self.capacity_nbytes:
                raise self._full(nbytes, self.capacity_nbytes)
            wanted = nbytes if padded_nbytes is None else padded_nbytes
            self._extents.grow(wanted - self._extents.free_nbytes)
            extents = self._extents.allocate(wanted)
            assert extents is not None, "the row was just made long enough"
            self._used_nbytes += nbytes
            return Lease(nbytes, extents, self._returned)

    @property
    def used_nbytes(self) -> int:
        with self._lock:
            self._settle()
            return self._used_nbytes

    def _full(self, nbytes: int, capacity_nbytes: int) -> TierFull:
        used, bound = format_nbytes(self._used_nbytes), format_nbytes(capacity_nbytes)
        return TierFull(
            f"the {self.tier} tier has no room for {format_nbytes(nbytes)}: {used} of its {bound} are used."
            f" {self._way_out}"
        )

    def _settle(self) -> None:
        """Take back what dead leases left. New notes may arrive while this runs; they are read too, or next time."""
        while self._returned:
            nbytes, extents = self._returned.popleft()
            self._used_nbytes -= nbytes
            for extent in extents:
                self._extents.release(extent)
