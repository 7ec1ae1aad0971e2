"""The host tier: a bounded part of the host's memory, in slabs that are kept and reused.

Enters: flat bytes in host memory, or pieces for an accelerator's copy engine. Leaves: the same bytes, later. The one
idea: places are ranges of one row of bytes, and slab k lies under [k·S, (k+1)·S) of it, made when first written. A
tensor never costs an allocation of its own, which matters because page-locked memory takes milliseconds to get. Where
there is an accelerator the slabs are page-locked, so that copies to and from it run beside compute. Where the system
refuses that (a limit of the process, Windows' subsystem for Linux), they are ordinary memory: copies are slower and
hold compute up, which is said once, counted, and seen by who times them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import torch

from vdnn.errors import TierFailed
from vdnn.runtime.tiers.ledger import Lease, Ledger
from vdnn.runtime.tiers.raw_memory import move_bytes, prefer_huge_pages
from vdnn.torch_private import without_torch_dispatch
from vdnn.units import MiB, format_nbytes

log = logging.getLogger("vdnn")

SLAB_NBYTES = 64 * MiB  # a few of the largest feature maps; the last slab, half empty on average, is what it wastes


class HostStore:
    """Host memory up to `capacity_nbytes`, or as much as there is. `pin=None` page-locks it if there is an
    accelerator."""

    def __init__(
        self,
        capacity_nbytes: int | None = None,
        *,
        name: str = "host",
        pin: bool | None = None,
        slab_nbytes: int = SLAB_NBYTES,
    ) -> None:
        self.name = name
        self.pin = torch.accelerator.is_available() if pin is None else pin
        self._ledger = Ledger(
            name, capacity_nbytes, way_out="Raise host_budget, or raise budget so that less has to leave."
        )
        self._slab_nbytes = slab_nbytes
        self._slabs: dict[int, torch.Tensor] = {}
        self._lock = threading.Lock()
        self._is_closed = self._is_refused = False
        self.ordinary_nbytes = 0
        """Of memory that was to be page-locked and is not."""

    def reserve(self, nbytes: int) -> HostPlace:
        self._check_open()
        return HostPlace(self, self._ledger.lease(nbytes))

    @property
    def used_nbytes(self) -> int:
        return self._ledger.used_nbytes

    @property
    def capacity_nbytes(self) -> int | None:
        return self._ledger.capacity_nbytes

    @property
    def slab_nbytes(self) -> int:
        """Memory taken from the system, whether it is in use or waits to be used again."""
        with self._lock:
            return sum(slab.numel() for slab in self._slabs.values())

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._slabs.clear()

    def pieces(self, lease: Lease) -> Iterator[tuple[torch.Tensor, int, int]]:
        """Slab, position in it, number of bytes: where the bytes of a lease lie, in order."""
        for extent in lease.extents:
            begin = extent.begin
            while begin < extent.end:
                index, position = divmod(begin, self._slab_nbytes)
                nbytes = min(extent.end - begin, self._slab_nbytes - position)
                yield self._slab(index), position, nbytes
                begin += nbytes

    def _slab(self, index: int) -> torch.Tensor:
        with self._lock:
            self._check_open()
            if index not in self._slabs:
                self._slabs[index] = self._new_slab(index)
            return self._slabs[index]

    def _new_slab(self, index: int) -> torch.Tensor:
        """The slabs together are never larger than the bound: the last one ends there."""
        nbytes = self._slab_nbytes
        if self.capacity_nbytes is not None:
            nbytes = min(nbytes, self.capacity_nbytes - index * self._slab_nbytes)
        return self.memory(nbytes)

    def memory(self, nbytes: int) -> torch.Tensor:
        """From the system, page-locked if that is wanted and can be had."""
        with without_torch_dispatch():  # the runtime's memory is not the model's: no tracker counts it
            if self.pin and not self._is_refused:
                try:
                    return torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)
                except RuntimeError as error:
                    self._note_refusal(nbytes, error)
            try:
                found = torch.empty(nbytes, dtype=torch.uint8, device="cpu")
            except RuntimeError as error:
                raise TierFailed(
                    f"the {self.name} tier got no memory from the system: {format_nbytes(nbytes)} were asked for,"
                    f" {format_nbytes(self.used_nbytes)} are used. Lower host_budget. ({error})"
                ) from error
        self.ordinary_nbytes += nbytes if self._is_refused else 0
        prefer_huge_pages(found.data_ptr(), nbytes)
        return found

    def _note_refusal(self, nbytes: int, error: RuntimeError) -> None:
        self._is_refused, reason = True, (str(error).strip().splitlines() or [type(error).__name__])[0]
        log.warning(
            "the %s tier goes on in ordinary memory, whose copies are slower and hold compute up: the system refuses to"
            " page-lock %s more (%s). Raise the limit of locked memory (ulimit -l), or lower host_budget",
            self.name,
            format_nbytes(nbytes),
            reason,
        )

    def _check_open(self) -> None:
        if self._is_closed:
            raise TierFailed(f"the {self.name} tier has been closed: nothing can be stored in it or read from it")


class HostPlace:
    """Room for `nbytes` in the slabs."""

    __slots__ = ("__weakref__", "_lease", "_store")

    def __init__(self, store: HostStore, lease: Lease) -> None:
        self._store = store
        self._lease = lease

    @property
    def nbytes(self) -> int:
        return self._lease.nbytes

    def write(self, source: torch.Tensor) -> None:
        assert source.numel() == self.nbytes, f"{source.numel()} bytes for a place of {self.nbytes}"
        address = source.data_ptr()
        for slab, position, nbytes in self._store.pieces(self._lease):
            move_bytes(slab.data_ptr() + position, address, nbytes)
            address += nbytes

    def read(self, target: torch.Tensor) -> None:
        assert target.numel() == self.nbytes, f"{target.numel()} bytes from a place of {self.nbytes}"
        address = target.data_ptr()
        prefer_huge_pages(address, self.nbytes)
        for slab, position, nbytes in self._store.pieces(self._lease):
            move_bytes(address, slab.data_ptr() + position, nbytes)
            address += nbytes

    def pieces(self) -> list[torch.Tensor]:
        """The place as flat tensors, in order: what an accelerator copies to and from."""
        with without_torch_dispatch():
            return [slab[begin : begin + nbytes] for slab, begin, nbytes in self._store.pieces(self._lease)]
