"""What a machine is to the planner: a compute device, its memory tiers, and the links between them.

Enters: constants with a source (`presets.py`) or measurements (`calibrate/machine_speeds.py`). Leaves: a frozen
`Hardware`. The first tier is the device itself; every further tier is slower and larger, and a link joins each with the
tier before it, in both directions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

THIS_MACHINE = "this machine"
"""The name of the hardware that was measured rather than described."""


@dataclass(frozen=True, slots=True)
class Tier:
    """A place where bytes can be. `nbytes` is None when nothing bounds it."""

    name: str
    nbytes: int | None = None


@dataclass(frozen=True, slots=True)
class Link:
    """One direction between two tiers.

    `drag` is the share of the device's compute that a running copy takes away: seconds of compute lost per second
    that the copy runs. A copy engine of its own takes none; a disk that the processor itself drives takes some.
    """

    source: str
    target: str
    bandwidth_bytes_per_s: float
    latency_s: float = 0.0
    drag: float = 0.0

    def __post_init__(self) -> None:
        if not self.bandwidth_bytes_per_s > 0:
            raise ValueError(f"link {self.name} needs a positive bandwidth, not {self.bandwidth_bytes_per_s}")
        if not self.latency_s >= 0:
            raise ValueError(f"link {self.name}: a copy cannot end before it begins, its latency is {self.latency_s} s")
        if not self.drag >= 0:
            raise ValueError(f"link {self.name}: a copy cannot speed compute up, its drag is {self.drag}")

    @property
    def name(self) -> str:
        return f"{self.source}->{self.target}"

    def seconds(self, nbytes: int) -> float:
        return self.latency_s + nbytes / self.bandwidth_bytes_per_s


@dataclass(frozen=True, slots=True)
class CodecSpeed:
    """How fast the device encodes and decodes, in bytes of the whole storage, and what a call takes before its first
    byte."""

    name: str
    encode_bytes_per_s: float
    decode_bytes_per_s: float
    encode_call_s: float = 0.0
    decode_call_s: float = 0.0

    def __post_init__(self) -> None:
        if not (self.encode_bytes_per_s > 0 and self.decode_bytes_per_s > 0):
            speeds = (self.encode_bytes_per_s, self.decode_bytes_per_s)
            raise ValueError(f"codec {self.name!r} needs positive speeds, not {speeds}")

    def seconds(self, nbytes: int) -> tuple[float, float]:
        """To encode and to decode."""
        encode_s = self.encode_call_s + nbytes / self.encode_bytes_per_s
        return encode_s, self.decode_call_s + nbytes / self.decode_bytes_per_s


@dataclass(frozen=True, slots=True)
class Hardware:
    """A device with its tiers, fastest first. `sources` says where each constant comes from. `codecs` are those whose
    speed is known; others are taken to be as fast as memory."""

    name: str
    flops_per_s: float
    memory_bandwidth_bytes_per_s: float
    tiers: tuple[Tier, ...]
    links: tuple[Link, ...] = ()
    launch_s: float = 0.0
    sources: tuple[tuple[str, str], ...] = ()
    codecs: tuple[CodecSpeed, ...] = ()

    def __post_init__(self) -> None:
        if not self.tiers:
            raise ValueError(f"hardware {self.name!r} needs at least the device tier")
        if not (self.flops_per_s > 0 and self.memory_bandwidth_bytes_per_s > 0):
            speeds = (self.flops_per_s, self.memory_bandwidth_bytes_per_s)
            raise ValueError(f"hardware {self.name!r} needs a positive speed and bandwidth, not {speeds}")
        names = [tier.name for tier in self.tiers]
        if len(set(names)) != len(names):
            raise ValueError(f"hardware {self.name!r} names a tier twice: {names}")
        for link in self.links:
            if link.source not in names or link.target not in names:
                raise ValueError(f"hardware {self.name!r}: link {link.name} joins tiers that are not among {names}")

    @property
    def device(self) -> Tier:
        return self.tiers[0]

    def tier(self, name: str) -> Tier:
        for tier in self.tiers:
            if tier.name == name:
                return tier
        raise ValueError(f"hardware {self.name!r} has no tier {name!r}: it has {[t.name for t in self.tiers]}")

    def codec(self, name: str) -> CodecSpeed | None:
        return next((codec for codec in self.codecs if codec.name == name), None)

    def link(self, source: str, target: str) -> Link:
        for link in self.links:
            if (link.source, link.target) == (source, target):
                return link
        raise ValueError(
            f"hardware {self.name!r} has no link {source}->{target}: it has {[x.name for x in self.links]}"
        )


def bounded(hardware: Hardware, name: str, nbytes: int | None) -> Hardware:
    """With a tier of at most so many bytes; None bounds nothing."""
    if nbytes is None:
        return hardware
    return replace(
        hardware, tiers=tuple(_at_most(tier, nbytes) if tier.name == name else tier for tier in hardware.tiers)
    )


def _at_most(tier: Tier, nbytes: int) -> Tier:
    return Tier(tier.name, nbytes if tier.nbytes is None else min(nbytes, tier.nbytes))
