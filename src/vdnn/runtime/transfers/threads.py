"""Transfers by worker threads: for the CPU, where the device is RAM, and for emulated tiers.

Enters: flat bytes in host memory and the name of a tier. Leaves: a ticket. Each tier has one thread that copies out and
one that copies in, so that prefetching runs beside offloading; each works in the order it is asked. The system calls
and copies inside release the interpreter lock, so the training thread keeps its core.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial

import torch

from vdnn.errors import TierFailed, TierFull
from vdnn.hardware.observed_links import ObservedLink
from vdnn.runtime.pool.accounts import Accounts
from vdnn.runtime.tiers.store import Place, Store
from vdnn.runtime.worker import CopyMeter, Job, Worker, naming, paced
from vdnn.units import format_nbytes


class ThreadTicket:
    """A place and the copies into and out of it. Copies in flight keep the place, not the ticket. The ticket keeps the
    transfers that made it, which a fetch will need."""

    __slots__ = ("__weakref__", "fetched", "name", "owner", "place", "sent", "tier")

    def __init__(self, owner: ThreadTransfers, tier: str, place: Place, sent: Job, name: str) -> None:
        self.owner = owner
        self.tier = tier
        self.name = name
        self.place = place
        self.sent = sent
        self.fetched: Job | None = None


class ThreadTransfers:
    """`throttle` gives tiers a bandwidth in bytes per second, in each direction, that copies do not exceed. It may be
    changed at any time, and holds for the copies that begin later."""

    def __init__(self, stores: Mapping[str, Store], *, throttle: Mapping[str, float] | None = None) -> None:
        self.stores = dict(stores)
        self.accounts = Accounts()
        self.throttle = dict(throttle or {})
        self._out = {tier: Worker(f"vdnn-to-{tier}") for tier in stores}
        self._in = {tier: Worker(f"vdnn-from-{tier}") for tier in stores}
        self._meter_out = {tier: CopyMeter(tier, is_back=False) for tier in stores}
        self._meter_in = {tier: CopyMeter(tier, is_back=True) for tier in stores}
        self._process = os.getpid()
        self._is_closed = False

    def send(self, source: torch.Tensor, tier: str, name: str = "") -> ThreadTicket:
        self._check_usable()
        with naming(name):
            place = self._reserve(tier, source.numel())
        copy = self._timed(partial(place.write, source), place.nbytes, self._meter_out[tier])
        job = Job(f"copying {format_nbytes(place.nbytes)} to the {tier} tier", copy, held=source)
        self._out[tier].submit(job)
        return ThreadTicket(self, tier, place, job, name)

    def wait_sent(self, ticket: ThreadTicket) -> None:
        self._check_process()
        with naming(ticket.name):
            ticket.sent.wait()

    def fetch(self, ticket: ThreadTicket, target: torch.Tensor) -> None:
        self._check_usable()
        place, tier = ticket.place, ticket.tier
        name = f"copying {format_nbytes(place.nbytes)} from the {tier} tier"
        copy = self._timed(partial(place.read, target), place.nbytes, self._meter_in[tier])
        ticket.fetched = Job(name, copy, held=target, after=ticket.sent)
        self._in[tier].submit(ticket.fetched)

    def wait_fetched(self, ticket: ThreadTicket) -> None:
        self._check_process()
        assert ticket.fetched is not None, "a ticket has to be fetched before it is waited for"
        with naming(ticket.name):
            ticket.fetched.wait()

    def observed_links(self) -> tuple[ObservedLink, ...]:
        return tuple(meter.observed for meter in (*self._meter_out.values(), *self._meter_in.values()))

    def close(self, *, finish: bool = True) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if self._process == os.getpid():
            for worker in (*self._out.values(), *self._in.values()):
                worker.stop(finish=finish)
        for store in self.stores.values():
            store.close()

    def _reserve(self, tier: str, nbytes: int) -> Place:
        """A dropped ticket whose copy is still under way holds its place: a full tier may have room in a moment."""
        assert tier in self.stores, f"no tier is called {tier!r}: there are {list(self.stores)}"
        try:
            return self.stores[tier].reserve(nbytes)
        except TierFull:
            self._out[tier].drain()
            self._in[tier].drain()
            return self.stores[tier].reserve(nbytes)

    def _timed(self, copy: partial[None], nbytes: int, meter: CopyMeter) -> partial[None]:
        return partial(meter.time, partial(_throttled, copy, nbytes, meter.observed.tier, self.throttle), nbytes)

    def _check_usable(self) -> None:
        self._check_process()
        if self._is_closed:
            raise TierFailed(f"transfers to and from {', '.join(self.stores)} have been closed")

    def _check_process(self) -> None:
        """A forked child has the objects but not the threads: it would wait for ever."""
        if self._process != os.getpid():
            raise TierFailed(
                f"transfers to and from {', '.join(self.stores)} belong to process {self._process} and this is"
                f" {os.getpid()}, forked from it. Build the model in the process that trains it."
            )


def _throttled(copy: partial[None], nbytes: int, tier: str, throttle: Mapping[str, float]) -> None:
    """On a worker, as fast as the throttle allows when the copy begins."""
    bandwidth = throttle.get(tier)
    return copy() if bandwidth is None else paced(copy, nbytes / bandwidth)
