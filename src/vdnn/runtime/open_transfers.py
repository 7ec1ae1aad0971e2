"""The transfers a machine's plan runs on: a store for each tier beyond the device, and what carries bytes there.

Enters: the tiers of a `Hardware`, as large as the user allows. Leaves: a `Transfers`. Worker threads where the
device is RAM, streams where it is an accelerator's memory. Nothing is allocated and no file is made before the first
copy.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from vdnn.environment import disk_dir
from vdnn.errors import InvalidInput
from vdnn.hardware.clocks import DeviceClock
from vdnn.hardware.device import Hardware, Tier
from vdnn.hardware.emulated import NAME as EMULATED
from vdnn.hardware.page_locked import transit_nbytes
from vdnn.runtime.tiers.disk import DiskStore
from vdnn.runtime.tiers.host import HostStore
from vdnn.runtime.tiers.store import Store
from vdnn.runtime.transfers.interface import Transfers
from vdnn.runtime.transfers.stream_ops import AcceleratorOps
from vdnn.runtime.transfers.streams import StreamTransfers
from vdnn.runtime.transfers.threads import ThreadTransfers


@dataclass(frozen=True, slots=True)
class AskedTiers:
    """What those who share transfers have in common. How fast a link is believed to be is not among it: a plan that is
    made again with other speeds runs on the same tiers."""

    tiers: tuple[Tier, ...]
    """Beyond the device, as large as the user allows."""

    throttle: tuple[tuple[str, float], ...] = ()
    spill_dir: str | None = None
    device: str = "cpu"
    """Where the model's tensors are."""

    verify_spills: bool = False
    """Whether what comes back from disk is checked."""

    @classmethod
    def of(
        cls,
        hardware: Hardware,
        spill_dir: str | os.PathLike[str] | None = None,
        device: torch.device | str = "cpu",
        *,
        verify_spills: bool = False,
    ) -> AskedTiers:
        where = None if spill_dir is None else os.fspath(spill_dir)
        return cls(hardware.tiers[1:], tuple(_throttle(hardware).items()), where, str(device), verify_spills)


def open_transfers(asked: AskedTiers) -> Transfers:
    """A store for each of the tiers, as large as it is."""
    stores = {tier.name: _store(tier, asked) for tier in asked.tiers}
    if torch.device(asked.device).type == "cpu":
        return ThreadTransfers(stores, throttle=dict(asked.throttle))
    host, disk = stores.pop("host", HostStore(None)), stores.pop("disk", None)
    assert isinstance(host, HostStore)
    if stores:
        others = ", ".join(map(repr, stores))
        raise InvalidInput(f"an accelerator's streams carry to host and disk, and not to {others}")
    where = torch.device(asked.device)
    most_nbytes = transit_nbytes(host.capacity_nbytes)
    return StreamTransfers(AcceleratorOps(where), host, disk, transit_nbytes=most_nbytes, clock=DeviceClock(where))


def _store(tier: Tier, asked: AskedTiers) -> Store:
    if tier.name == "host":
        return HostStore(tier.nbytes)
    if tier.name == "disk":
        where = disk_dir() if asked.spill_dir is None else asked.spill_dir
        return DiskStore(where, tier.nbytes, verify=asked.verify_spills)
    raise InvalidInput(
        f"there is a tier {tier.name!r}, and nothing that keeps bytes there: such hardware can be planned for, with"
        " vdnn.plan, and not trained on. To train, name hardware whose tiers beyond the device are host and disk."
    )


def _throttle(hardware: Hardware) -> dict[str, float]:
    """An emulated machine is slowed down to its links; a real one is as fast as it is."""
    if hardware.name != EMULATED:
        return {}
    return {link.target: link.bandwidth_bytes_per_s for link in hardware.links if link.target != hardware.device.name}
