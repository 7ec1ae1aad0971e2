"""How much longer compute lasts because copies run beside it.

Enters: the intervals in which links with a drag copy, as they are queued. Leaves: when a piece of compute that begins
at some time ends. The one idea: while copies run, compute advances at the rate 1 - (the sum of their drags), never
below zero, so

    lost seconds of compute = drag x seconds that the copy ran beside compute

which is what `calibrate/copies_beside_compute.py` measures. No interval has to be looked at twice: compute goes forward
in time, links are first in first out, and a copy that is queued after an op begins after it.
"""

from __future__ import annotations

from collections import deque
from math import inf

from vdnn.hardware.device import Hardware, Link


class Drag:
    """Copies that are under way or queued, by link; those that have ended are forgotten."""

    def __init__(self, hardware: Hardware) -> None:
        self._shares = {link.name: link.drag for link in hardware.links if link.drag > 0}
        self._copies: dict[str, deque[tuple[float, float]]] = {name: deque() for name in self._shares}

    def copy(self, link: Link, begin_s: float, end_s: float) -> None:
        """A copy over the link is queued behind those before it."""
        if link.name in self._copies:
            self._copies[link.name].append((begin_s, end_s))

    def end_s(self, begin_s: float, seconds: float) -> float:
        """When compute ends that begins at `begin_s` and takes `seconds` where nothing disturbs it."""
        now_s, left_s = begin_s, seconds
        while self._shares:
            rate, until_s = self._rate(now_s)
            if left_s <= rate * (until_s - now_s):
                return now_s + left_s / rate if left_s else now_s
            left_s -= rate * (until_s - now_s)
            now_s = until_s
        return now_s + left_s

    def _rate(self, now_s: float) -> tuple[float, float]:
        """Seconds of compute per second from now on, and until when that holds."""
        taken, until_s = 0.0, inf
        for name, copies in self._copies.items():
            while copies and copies[0][1] <= now_s:
                copies.popleft()
            if copies:
                begin_s, end_s = copies[0]
                is_running = begin_s <= now_s
                taken += self._shares[name] if is_running else 0.0
                until_s = min(until_s, end_s if is_running else begin_s)
        return max(0.0, 1.0 - taken), until_s
