"""Machines whose tiers the tests offload to, and the smallest budget a strategy can meet on them."""

from __future__ import annotations

from typing import Any

import torch

import vdnn
from vdnn.api import session_of
from vdnn.errors import Infeasible
from vdnn.hardware.device import Hardware, Link, Tier
from vdnn.hardware.emulated import emulated
from vdnn.runtime.transfers.streams import StreamTransfers

DISK = Hardware(
    name="RAM above disk",
    flops_per_s=1e11,
    memory_bandwidth_bytes_per_s=1e10,
    tiers=(Tier("device"), Tier("disk")),
    links=(Link("device", "disk", 1e9), Link("disk", "device", 1e9)),
)
THREE_TIERS = emulated(host_nbytes=200_000)
"""So little host memory that plans of small networks overflow it to disk."""

MACHINES = {"disk": DISK, "three tiers": THREE_TIERS}


def smallest_budget(step: Any, args: Any, strategy: str, device: Hardware) -> int:
    try:
        vdnn.plan(step, args, budget="1B", strategy=strategy, hardware=device)
    except Infeasible as reason:
        return reason.minimum_nbytes
    raise AssertionError(f"{strategy} met a budget of one byte")


def used_nbytes(virtual: Any) -> int:
    """What a virtualized model holds in all its slower tiers."""
    return settled_nbytes(session_of(virtual).transfers())


def settled_nbytes(transfers: Any) -> int:
    """What slower tiers hold once copies that nobody waits for are over."""
    if isinstance(transfers, StreamTransfers):
        torch.accelerator.synchronize()
        workers = [transfers._to_disk, transfers._from_disk]
    else:
        workers = [*transfers._out.values(), *transfers._in.values()]
    for worker in workers:
        worker.drain()
    return sum(store.used_nbytes for store in transfers.stores.values())


def slow_down(virtual: Any, tier: str, bytes_per_s: float) -> None:
    """From now on copies to and from a tier of this model take as long as over a link of that speed."""
    session_of(virtual).transfers().throttle[tier] = bytes_per_s  # type: ignore[attr-defined]
