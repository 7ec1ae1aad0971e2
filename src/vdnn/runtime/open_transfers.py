"""The transfers a machine's plan runs on: a store for each tier beyond the device, and what carries bytes there.

Enters: a `Hardware` and the user's bounds. Leaves: a `Transfers`. Worker threads where the device is RAM, streams where
it is an accelerator's memory. Nothing is allocated and no file is made before the first copy.
"""

from __future__ import annotations

import os

import torch

from vdnn.environment import disk_dir
from vdnn.errors import InvalidInput
from vdnn.hardware.device import Hardware
from vdnn.hardware.emulated import NAME as EMULATED
from vdnn.runtime.tiers.disk import DiskStore
from vdnn.runtime.tiers.host import HostStore
from vdnn.runtime.tiers.store import Store
from vdnn.runtime.transfers.interface import Transfers
from vdnn.runtime.transfers.stream_ops import AcceleratorOps
from vdnn.runtime.transfers.streams import StreamTransfers
from vdnn.runtime.transfers.threads import ThreadTransfers


def open_transfers(
    hardware: Hardware,
    *,
    host_budget: int | None = None,
    disk_budget: int | None = None,
    spill_dir: str | os.PathLike[str] | None = None,
    device: torch.device | str = "cpu",
) -> Transfers:
    """Stores for "host" and "disk" where the hardware has them, each bounded by its budget or else by the hardware.
    `device` is where the model's tensors are."""
    budgets = {"host": host_budget, "disk": disk_budget}
    stores = {tier.name: _store(tier.name, budgets, hardware, spill_dir) for tier in hardware.tiers[1:]}
    if torch.device(device).type == "cpu":
        return ThreadTransfers(stores, throttle=_throttle(hardware))
    host = stores.get("host", HostStore(host_budget))
    assert isinstance(host, HostStore)
    return StreamTransfers(AcceleratorOps(), host, stores.get("disk"))


def _store(
    tier: str, budgets: dict[str, int | None], hardware: Hardware, spill_dir: str | os.PathLike[str] | None
) -> Store:
    if tier not in budgets:
        raise InvalidInput(f"hardware {hardware.name!r} has a tier {tier!r}; the runtime has host and disk")
    bound = _smaller(budgets[tier], hardware.tier(tier).nbytes)
    return HostStore(bound) if tier == "host" else DiskStore(disk_dir() if spill_dir is None else spill_dir, bound)


def _smaller(one: int | None, other: int | None) -> int | None:
    return min((bound for bound in (one, other) if bound is not None), default=None)


def _throttle(hardware: Hardware) -> dict[str, float]:
    """An emulated machine is slowed down to its links; a real one is as fast as it is."""
    if hardware.name != EMULATED:
        return {}
    return {link.target: link.bandwidth_bytes_per_s for link in hardware.links if link.target != hardware.device.name}
