"""What copies over a link really took, and the machine as they show it.

Enters: counts that the runtime keeps of its copies (`runtime/transfers/`). Leaves: frozen `ObservedLink`s, and a
`Hardware` whose links are as fast as they were seen to be. The one idea: **sums, and the difference of two of them**.
Somebody who looks at the end of every step gets the speed of that step, and a disk that becomes slow in mid-training
shows in the next one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from vdnn.hardware.device import Hardware, Link


@dataclass(frozen=True, slots=True)
class ObservedLink:
    """All copies from the device to `tier`, or back from there if `is_back`: how many, their bytes, and the seconds
    during which one of them was under way. Copies of one direction run one after the other."""

    tier: str
    is_back: bool
    num_copies: int = 0
    nbytes: int = 0
    busy_s: float = 0.0

    @property
    def bytes_per_s(self) -> float | None:
        """None before the first byte."""
        return self.nbytes / self.busy_s if self.nbytes and self.busy_s > 0 else None

    def since(self, earlier: ObservedLink) -> ObservedLink:
        """The copies that came after an earlier look at the same link."""
        assert (self.tier, self.is_back) == (earlier.tier, earlier.is_back), f"{self} and {earlier} are two links"
        return replace(
            self,
            num_copies=self.num_copies - earlier.num_copies,
            nbytes=self.nbytes - earlier.nbytes,
            busy_s=self.busy_s - earlier.busy_s,
        )

    def link_in(self, hardware: Hardware) -> Link:
        """The link between the tier and the one before it, in this direction."""
        names = [tier.name for tier in hardware.tiers]
        near = names[names.index(self.tier) - 1]
        return hardware.link(self.tier, near) if self.is_back else hardware.link(near, self.tier)

    def slowdown(self, hardware: Hardware) -> float | None:
        """The seconds that the copies took over those that `hardware` gives them; None before the first byte."""
        if not (self.nbytes and self.busy_s > 0):
            return None
        link = self.link_in(hardware)
        return self.busy_s / (self.num_copies * link.latency_s + self.nbytes / link.bandwidth_bytes_per_s)


def observed_since(now: Iterable[ObservedLink], earlier: Iterable[ObservedLink]) -> tuple[ObservedLink, ...]:
    """Link by link what came after `earlier`; a link that was not there then is new as a whole."""
    before = {(link.tier, link.is_back): link for link in earlier}
    none_yet = ((link, ObservedLink(link.tier, link.is_back)) for link in now)
    return tuple(link.since(before.get((link.tier, link.is_back), zero)) for link, zero in none_yet)


def as_observed(hardware: Hardware, observed: Sequence[ObservedLink]) -> Hardware:
    """The machine with its links as slow or as fast as the copies over them were. A link that carried nothing stays as
    it was believed to be. What a copied byte costs the compute beside it does not change with the link's speed."""
    found = {link.link_in(hardware).name: link.slowdown(hardware) for link in observed}
    links = tuple(_slower(link, found.get(link.name)) for link in hardware.links)
    seen = {name for name, slowdown in found.items() if slowdown is not None}
    others = tuple((name, source) for name, source in hardware.sources if name not in seen)
    return replace(hardware, links=links, sources=(*others, *((name, OBSERVED) for name in sorted(seen))))


OBSERVED = "measured: copies of training steps"
"""The source of a link's constants once training has shown them."""


def _slower(link: Link, slowdown: float | None) -> Link:
    if slowdown is None:
        return link
    bandwidth = link.bandwidth_bytes_per_s / slowdown
    return replace(
        link,
        bandwidth_bytes_per_s=bandwidth,
        latency_s=link.latency_s * slowdown,
        drag=min(link.drag / slowdown, max(link.drag, 1.0)),
    )
