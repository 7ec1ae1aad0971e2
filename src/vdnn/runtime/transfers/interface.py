"""Copies between the device and its slower tiers, started at one position of a program and waited for at another.

Enters: the bytes of a storage. Leaves: a `Ticket`, with which the bytes are brought back. The same runtime code drives
three implementations: `threads.py` (CPU, disk, emulated tiers), `streams.py` (any torch.accelerator) and `checking.py`
(moves nothing, reports every read that is not ordered after its copy and every buffer that is reused before its copy is
done).

The life of a ticket: send → sent (the source may be freed) → fetch → fetched (the target may be read), and fetch again
if autograd kept the graph. A ticket owns its place: dropping the last reference to a ticket drops the bytes, after any
copy in flight.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch

from vdnn.hardware.observed_links import ObservedLink
from vdnn.runtime.pool.accounts import Accounts
from vdnn.runtime.tiers.store import Store

Ticket = Any
"""Opaque to the runtime: whatever an implementation returns from `send`."""


class Transfers(Protocol):
    """All tensors are flat uint8 views of whole storages. Calls return at once except the two that wait."""

    accounts: Accounts
    """Of everything that moves through these tiers."""

    stores: dict[str, Store]
    """The tiers, by name."""

    def send(self, source: torch.Tensor, tier: str, name: str = "") -> Ticket:
        """Start copying `source` to `tier`. The transfer keeps `source` alive until `wait_sent`. An error about it, now
        or later, begins with its `name`."""
        ...

    def wait_sent(self, ticket: Ticket) -> None:
        """Return when the copy out is done, and let go of the source: afterwards the transfer holds no reference to it.
        Raises what went wrong."""
        ...

    def fetch(self, ticket: Ticket, target: torch.Tensor) -> None:
        """Start copying back into `target`, which the caller has allocated; the transfer keeps it alive until
        `wait_fetched`."""
        ...

    def wait_fetched(self, ticket: Ticket) -> None:
        """Return when `target` may be read, and let go of it. Raises what went wrong."""
        ...

    def observed_links(self) -> tuple[ObservedLink, ...]:
        """What the copies took so far: out and back for each tier whose copies are timed. Two of these subtracted
        (`observed_since`) are the copies in between."""
        ...

    def close(self, *, finish: bool = True) -> None:
        """Finish what is in flight, stop workers, give every tier back to the system. With `finish=False` copies that
        have not begun are dropped. A second call does nothing."""
        ...
