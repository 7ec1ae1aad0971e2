"""Transfers on an accelerator: one side stream copies out, one copies in, and events order them with compute.

Enters: flat bytes on the device and the name of a tier. Leaves: a ticket. Four orders make it right, and whichever
wait or event of this file is left out, a claim of `tests/device` fails:

    send          copy out after what compute has been given so far, which produced the source
    wait_sent     compute after the copy out, so that memory freed now is not overwritten too early
    fetch         copy in after the copy out, and after what compute did with the target's memory before
    wait_fetched  compute after the copy in

Note [Waiting in the stream]: `wait_sent` and `wait_fetched` hold up the compute stream, not the thread. Memory freed
after `wait_sent` goes to operations behind that wait, so the allocator may hand it out at once and the peak is that of
the plan. A ticket that is dropped without its wait (an exception between forward and backward) makes the stream wait on
which its memory was computed. Nothing here asks an allocator to hold memory back (`record_stream`): blocks of a step's
arena are none of its own (`runtime/step_memory/`).

The disk lies behind the host: worker threads carry bytes on from page-locked memory that is theirs until they are done.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import torch

from vdnn.errors import TierFull
from vdnn.hardware.clocks import Clock
from vdnn.hardware.observed_links import ObservedLink
from vdnn.hardware.page_locked import TRANSIT_NBYTES
from vdnn.runtime.pool.accounts import Accounts
from vdnn.runtime.tiers.host import HostPlace, HostStore
from vdnn.runtime.tiers.store import Place, Store
from vdnn.runtime.transfers.stream_meter import StreamMeter
from vdnn.runtime.transfers.stream_ops import Stream, StreamEvent, StreamOps
from vdnn.runtime.transfers.transit import TransitMemory
from vdnn.runtime.worker import CopyMeter, Job, Worker, naming
from vdnn.torch_private import without_torch_dispatch
from vdnn.units import format_nbytes


class DiskHop:
    """The part of a transfer behind the host: a place on disk, its writing, and its reading into `transit`."""

    def __init__(self, place: Place, written: Job) -> None:
        self.place = place
        self.written = written
        self.read: Job | None = None
        self.transit: torch.Tensor | None = None


class StreamTicket:
    """Bytes in host slabs or on disk. `source` and `target` are held until they are waited for."""

    def __init__(
        self, owner: StreamTransfers, source: torch.Tensor, place: HostPlace | DiskHop, sent: StreamEvent, name: str
    ) -> None:
        self.owner = owner
        self.name = name
        self.source: torch.Tensor | None = source
        self.target: torch.Tensor | None = None
        self.place = place
        self.sent = sent
        self.computed_on: Stream = owner.current_stream()
        """What its memory is handed out to next, when it is freed."""

        self.target_is_free: StreamEvent | None = None
        self.fetched: StreamEvent | None = None

    def __del__(self) -> None:
        self.owner.abandon(self)


class StreamTransfers:
    """Drives `ops`; `host` should be page-locked, `disk` may be left out. Copies of streams are timed by `clock`, where
    there is one."""

    def __init__(
        self,
        ops: StreamOps,
        host: HostStore,
        disk: Store | None = None,
        *,
        transit_nbytes: int = TRANSIT_NBYTES,
        clock: Clock | None = None,
    ) -> None:
        self.stores: dict[str, Store] = {store.name: store for store in (host, disk) if store is not None}
        self.accounts = Accounts()
        self._ops = ops
        self._host, self._disk = host, disk
        self._out, self._in = ops.new_stream(), ops.new_stream()
        self._to_disk, self._from_disk = Worker("vdnn-to-disk"), Worker("vdnn-from-disk")
        self._meter_out, self._meter_in = CopyMeter("disk", is_back=False), CopyMeter("disk", is_back=True)
        self.transit = TransitMemory(clock, host.memory, transit_nbytes)
        self._meter_to_host = StreamMeter(host.name, clock, self._out, is_back=False)
        self._meter_from_host = StreamMeter(host.name, clock, self._in, is_back=True)

    def send(self, source: torch.Tensor, tier: str, name: str = "") -> StreamTicket:
        assert tier in self.stores, f"no tier is called {tier!r}: there are {list(self.stores)}"
        self._ops.wait(self._out, self._ops.record(self._ops.current_stream()))
        with naming(name):
            if tier == self._host.name:
                place = self._host.reserve(source.numel())
                return StreamTicket(self, source, place, self._copy_out(source, place.pieces()), name)
            return self._send_to_disk(source, name)

    def wait_sent(self, ticket: StreamTicket) -> None:
        """Note [Waiting in the stream]. What the disk says about it is heard by the fetch."""
        self._ops.wait(self._ops.current_stream(), ticket.sent)
        ticket.source = None

    def current_stream(self) -> Stream:
        return self._ops.current_stream()

    def fetch(self, ticket: StreamTicket, target: torch.Tensor) -> None:
        ticket.target, ticket.computed_on = target, self._ops.current_stream()
        ticket.target_is_free = self._ops.record(ticket.computed_on)
        if isinstance(ticket.place, DiskHop):
            self._start_reading(ticket.place, target.numel())
        else:
            self._copy_in(ticket, ticket.place.pieces())

    def wait_fetched(self, ticket: StreamTicket) -> None:
        assert ticket.target is not None, "a ticket has to be fetched before it is waited for"
        if isinstance(ticket.place, DiskHop):
            with naming(ticket.name):
                transit = self._finish_reading(ticket.place)
            self._copy_in(ticket, [transit])
            self.transit.read_until(transit, ticket.fetched)
        self._ops.wait(self._ops.current_stream(), ticket.fetched)
        ticket.target = None

    def observed_links(self) -> tuple[ObservedLink, ...]:
        disk = () if self._disk is None else (self._meter_out.observed, self._meter_in.observed)
        return (self._meter_to_host.observed, self._meter_from_host.observed, *disk)

    def close(self, *, finish: bool = True) -> None:
        self._to_disk.stop(finish=finish)
        self._from_disk.stop(finish=finish)
        with suppress(torch.AcceleratorError):  # of a device that is gone, nothing is under way
            for stream in (self._out, self._in):
                self._ops.synchronize(self._ops.record(stream))
        for store in self.stores.values():
            store.close()

    def abandon(self, ticket: StreamTicket) -> None:
        """A ticket goes, maybe with the garbage on another thread. Copies it did not wait for go on: their device
        memory and their host place are not reused before. A later copy out may get the host place, so that stream waits
        for the copy in; what is computed next may get the device memory, so it waits for both. What they bring is read
        by nobody; what they touch must not be another's by then, nor given back to the system. Of a device that is gone
        nothing is."""
        is_coming = ticket.target is not None and ticket.fetched is not None
        with suppress(torch.AcceleratorError):
            if is_coming:
                self._ops.wait(self._out, ticket.fetched)
            if is_coming or ticket.source is not None:
                self._ops.wait(ticket.computed_on, self._ops.record(self._out))

    def _copy_out(self, source: torch.Tensor, pieces: Sequence[torch.Tensor]) -> StreamEvent:
        with self._meter_to_host.timing(source.numel()):
            for piece, part in zip(pieces, _cut(source, pieces), strict=True):
                self._ops.copy(self._out, piece, part)
        return self._ops.record(self._out)

    def _copy_in(self, ticket: StreamTicket, pieces: Sequence[torch.Tensor]) -> None:
        assert ticket.target is not None
        self._ops.wait(self._in, ticket.sent)
        self._ops.wait(self._in, ticket.target_is_free)
        with self._meter_from_host.timing(ticket.target.numel()):
            for piece, part in zip(pieces, _cut(ticket.target, pieces), strict=True):
                self._ops.copy(self._in, part, piece)
        ticket.fetched = self._ops.record(self._in)

    def _send_to_disk(self, source: torch.Tensor, name: str) -> StreamTicket:
        assert self._disk is not None
        place, transit = self._reserve_on_disk(self._disk, source.numel()), self._new_transit(source.numel())
        sent = self._copy_out(source, [transit])

        def write() -> None:
            self._ops.synchronize(sent)
            self._meter_out.time(partial(place.write, transit), place.nbytes)

        written = Job(f"copying {format_nbytes(place.nbytes)} to the {self._disk.name} tier", write)
        self._to_disk.submit(written)
        return StreamTicket(self, source, DiskHop(place, written), sent, name)

    def _start_reading(self, hop: DiskHop, nbytes: int) -> None:
        place, transit = hop.place, self._new_transit(nbytes)
        name = f"copying {format_nbytes(nbytes)} from {' and '.join(self.stores)}"
        read = partial(self._meter_in.time, partial(place.read, transit), nbytes)
        hop.transit, hop.read = transit, Job(name, read, after=hop.written)
        self._from_disk.submit(hop.read)

    def _finish_reading(self, hop: DiskHop) -> torch.Tensor:
        assert hop.read is not None
        hop.read.wait()
        transit, hop.transit = hop.transit, None
        assert transit is not None, "a fetch is waited for once"
        return transit

    def _reserve_on_disk(self, disk: Store, nbytes: int) -> Place:
        """A dropped ticket whose copy is still under way holds its place: a full disk may have room in a moment."""
        try:
            return disk.reserve(nbytes)
        except TierFull:
            self._to_disk.drain()
            self._from_disk.drain()
            return disk.reserve(nbytes)

    def _new_transit(self, nbytes: int) -> torch.Tensor:
        """Where there is no room, what was given to the disk before has to arrive there."""
        if not self.transit.has_room(nbytes):
            self._to_disk.drain()
        return self.transit.take(nbytes)


def _cut(whole: torch.Tensor, pieces: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """Views of `whole`, one after the other, as long as the pieces."""
    with without_torch_dispatch():
        return torch.split(whole, [piece.numel() for piece in pieces]) if pieces else ()
