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
from vdnn.runtime.pool.accounts import Accounts
from vdnn.runtime.tiers.store import Place, Store
from vdnn.runtime.worker import Job, Worker, paced
from vdnn.units import format_nbytes


class ThreadTicket:
    """A place and the copies into and out of it. Copies in flight keep the place, not the ticket."""

    __slots__ = ("__weakref__", "fetched", "place", "sent", "tier")

    def __init__(self, tier: str, place: Place, sent: Job) -> None:
        self.tier = tier
        self.place = place
        self.sent = sent
        self.fetched: Job | None = None


class ThreadTransfers:
    """`throttle` gives tiers a bandwidth in bytes per second, in each direction, that copies do not exceed."""

    def __init__(self, stores: Mapping[str, Store], *, throttle: Mapping[str, float] | None = None) -> None:
        self.stores = dict(stores)
        self.accounts = Accounts()
        self._throttle = dict(throttle or {})
        self._out = {tier: Worker(f"vdnn-to-{tier}") for tier in stores}
        self._in = {tier: Worker(f"vdnn-from-{tier}") for tier in stores}
        self._process = os.getpid()
        self._is_closed = False

    def send(self, source: torch.Tensor, tier: str) -> ThreadTicket:
        self._check_usable()
        place = self._reserve(tier, source.numel())
        name = f"copying {format_nbytes(place.nbytes)} to the {tier} tier"
        job = Job(name, self._paced(partial(place.write, source), tier, place.nbytes), held=source)
        self._out[tier].submit(job)
        return ThreadTicket(tier, place, job)

    def wait_sent(self, ticket: ThreadTicket) -> None:
        self._check_process()
        ticket.sent.wait()

    def fetch(self, ticket: ThreadTicket, target: torch.Tensor) -> None:
        self._check_usable()
        place, tier = ticket.place, ticket.tier
        name = f"copying {format_nbytes(place.nbytes)} from the {tier} tier"
        action = self._paced(partial(place.read, target), tier, place.nbytes)
        ticket.fetched = Job(name, action, held=target, after=ticket.sent)
        self._in[tier].submit(ticket.fetched)

    def wait_fetched(self, ticket: ThreadTicket) -> None:
        self._check_process()
        assert ticket.fetched is not None, "a ticket has to be fetched before it is waited for"
        ticket.fetched.wait()

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

    def _paced(self, action: partial[None], tier: str, nbytes: int) -> partial[None]:
        bandwidth = self._throttle.get(tier)
        return action if bandwidth is None else partial(paced, action, nbytes / bandwidth)

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
