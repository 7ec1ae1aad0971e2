"""How much room the slower tiers have left, moment by moment.

Enters: a machine and what is sent where. Leaves: the nearest tier that can take so many bytes over so many moments. The
one idea: a copy occupies its tier from the moment at which it is sent up to the one before which it is back, and a tier
is full when any moment in between is. Tiers that nothing bounds are not counted at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from vdnn.hardware.device import Hardware


def slower_tiers(hardware: Hardware) -> tuple[str, ...]:
    """Names of the tiers that copies can reach, nearest first: joined in both directions, link by link."""
    links = {(link.source, link.target) for link in hardware.links}
    names = [tier.name for tier in hardware.tiers]
    reached: list[str] = []
    for near, far in pairwise(names):
        if not {(near, far), (far, near)} <= links:
            break
        reached.append(far)
    return tuple(reached)


def has_slower_tier(hardware: Hardware) -> bool:
    return bool(slower_tiers(hardware))


class TierRoom:
    """What is taken of each tier at every moment. A tier that nothing bounds always has room."""

    def __init__(self, hardware: Hardware, num_moments: int) -> None:
        self.tiers = slower_tiers(hardware)
        bounds = {name: hardware.tier(name).nbytes for name in self.tiers}
        self.bounds = {name: nbytes for name, nbytes in bounds.items() if nbytes is not None}
        self.taken = {name: np.zeros(num_moments, dtype=np.int64) for name in self.bounds}

    def take(self, nbytes: int, sent: int, back: int, tiers: Sequence[str] | None = None) -> str | None:
        """Occupy the first of `tiers` (all, nearest first, unless told) that has room; its name, or None."""
        for name in self.tiers if tiers is None else tiers:
            if name not in self.bounds:
                return name
            held = self.taken[name][sent:back]
            if int(held.max(initial=0)) + nbytes <= self.bounds[name]:
                held += nbytes
                return name
        return None
