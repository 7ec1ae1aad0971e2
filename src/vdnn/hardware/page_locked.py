"""How page-locked memory of the host is shared out: to what holds maps, and to what they pass through on their way to
disk.

Enters: all of it that may be taken. Leaves: the two parts. The one idea: **a bound is one of both**. What a user allows
as `host_budget` is what the system sees locked; the planner's host tier is that less what the way to disk takes.
"""

from __future__ import annotations

from dataclasses import replace

from vdnn.hardware.device import Hardware, Tier
from vdnn.units import GiB

TRANSIT_NBYTES = GiB
"""On the way to disk or back, at most, before a copy waits for the disk to catch up."""


def with_transit(hardware: Hardware) -> Hardware:
    """An accelerator's machine, with the host tier that is left beside the way to disk."""
    names = [tier.name for tier in hardware.tiers]
    if "disk" not in names or "host" not in names or hardware.tier("host").nbytes is None:
        return hardware
    return replace(hardware, tiers=tuple(_beside_transit(tier) for tier in hardware.tiers))


def _beside_transit(tier: Tier) -> Tier:
    if tier.name != "host" or tier.nbytes is None:
        return tier
    return Tier(tier.name, tier.nbytes - min(TRANSIT_NBYTES, tier.nbytes // 4))


def transit_nbytes(host_nbytes: int | None) -> int:
    """What was left for the way to disk beside a host tier of so many bytes."""
    return TRANSIT_NBYTES if host_nbytes is None else min(TRANSIT_NBYTES, host_nbytes // 3)
