"""The transfers a machine's plan runs on: a store for each tier beyond the device, and what carries bytes there.

Enters: a `Hardware`, whose tiers are as large as the user allows. Leaves: a `Transfers`. Worker threads where the
device is RAM, streams where it is an accelerator's memory. Nothing is allocated and no file is made before the first
copy.
"""

from __future__ import annotations

import os

import torch

from vdnn.environment import disk_dir
from vdnn.errors import InvalidInput
from vdnn.hardware.device import Hardware, Tier
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
    spill_dir: str | os.PathLike[str] | None = None,
    device: torch.device | str = "cpu",
) -> Transfers:
    """A store for each of the hardware's slower tiers, as large as it is. `device` is where the model's tensors are."""
    stores = {tier.name: _store(tier, hardware, spill_dir) for tier in hardware.tiers[1:]}
    if torch.device(device).type == "cpu":
        return ThreadTransfers(stores, throttle=throttle_of(hardware))
    host = stores.get("host", HostStore(None))
    assert isinstance(host, HostStore)
    return StreamTransfers(AcceleratorOps(), host, stores.get("disk"))


def _store(tier: Tier, hardware: Hardware, spill_dir: str | os.PathLike[str] | None) -> Store:
    if tier.name == "host":
        return HostStore(tier.nbytes)
    if tier.name == "disk":
        return DiskStore(disk_dir() if spill_dir is None else spill_dir, tier.nbytes)
    raise InvalidInput(f"hardware {hardware.name!r} has a tier {tier.name!r}; the runtime has host and disk")


def throttle_of(hardware: Hardware) -> dict[str, float]:
    """An emulated machine is slowed down to its links; a real one is as fast as it is."""
    if hardware.name != EMULATED:
        return {}
    return {link.target: link.bandwidth_bytes_per_s for link in hardware.links if link.target != hardware.device.name}
