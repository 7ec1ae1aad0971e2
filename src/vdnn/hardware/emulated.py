"""A machine with three tiers that runs anywhere: device and host are two counted parts of RAM, the disk is a disk.

Enters: sizes and a bandwidth. Leaves: a `Hardware` whose first tier the runtime counts and whose links it can slow
down to the bandwidth given. It stands in for an accelerator beside a host, so that plans over three tiers can be
executed and checked without one.
"""

from __future__ import annotations

from vdnn.errors import InvalidInput
from vdnn.hardware.device import Hardware, Link, Tier

NAME = "emulated"
BANDWIDTH_BYTES_PER_S = 12.8e9  # the effective bus of vDNN (MICRO 2016), section on methodology
DISK_SHARE = 0.2  # assumed: of the bus, what a PCIe gen3 drive reaches (2.7 of 12.8 GB/s, as in presets.py)
ASSUMED_FLOPS_PER_S = 1e11  # assumed: a few cores of a current processor; `vdnn doctor` measures the real one
ASSUMED_MEMORY_BYTES_PER_S = 1e10  # assumed, likewise


def emulated(
    device_nbytes: int | None = None,
    host_nbytes: int | None = None,
    disk: bool = True,
    bandwidth: float = BANDWIDTH_BYTES_PER_S,
) -> Hardware:
    """Tiers device, host and (unless left out) disk; `bandwidth` in bytes per second between device and host."""
    if bandwidth <= 0:
        raise InvalidInput(f"an emulated link needs a positive bandwidth in bytes per second, not {bandwidth}")
    tiers = [Tier("device", device_nbytes), Tier("host", host_nbytes)]
    links = [Link("device", "host", bandwidth), Link("host", "device", bandwidth)]
    if disk:
        tiers.append(Tier("disk"))
        links += [Link("host", "disk", DISK_SHARE * bandwidth), Link("disk", "host", DISK_SHARE * bandwidth)]
    return Hardware(
        name=NAME,
        flops_per_s=ASSUMED_FLOPS_PER_S,
        memory_bandwidth_bytes_per_s=ASSUMED_MEMORY_BYTES_PER_S,
        tiers=tuple(tiers),
        links=tuple(links),
        sources=tuple((name, "emulated: chosen by the caller, or assumed") for name in _constants(links)),
    )


def _constants(links: list[Link]) -> list[str]:
    return ["flops_per_s", "memory_bandwidth_bytes_per_s", *(link.name for link in links)]
