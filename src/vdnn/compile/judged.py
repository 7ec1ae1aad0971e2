"""What a plan has been judged for: times that scatter are looked at where they have not been before.

Enters: what steps took, and how slow copies were, whenever somebody looked. Leaves: whether a time is new. The one
idea: **a plan that stayed when its step took 2 s and when it took 4 s stays at 3 s**. Beside other processes times
scatter by more than what is looked for, and a look is dear: timed programs are generated, a plan is made again, and
idle pages of the arena go back for that and are faulted in again. Times that leave a range which grows with each look
become rare: there are a few in a thousand steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from vdnn.hardware.device import Hardware
from vdnn.hardware.observed_links import ObservedLink

FAR_OFF = 0.25
"""Share by which steps may leave the range of what they took so far before they are timed again."""


@dataclass(frozen=True, slots=True)
class Range:
    """From the least to the most that was seen: both above 0, or nothing could be so many times more."""

    least: float
    most: float

    def __post_init__(self) -> None:
        if not 0 < self.least <= self.most:
            raise ValueError(f"no range of times: from {self.least} to {self.most}")

    def joined(self, value: float) -> Range:
        return Range(min(self.least, value), max(self.most, value))

    def is_left(self, value: float, times: float) -> bool:
        """Whether it is so many times less than the least, or more than the most."""
        return not self.least / times < value < self.most * times


@dataclass
class JudgedFor:
    """Of one plan, which was made for `hardware`. Slowdowns of links are those against it."""

    hardware: Hardware
    _links: dict[str, Range] = field(default_factory=dict)
    _steps: Range | None = None

    def note_step(self, seconds: float) -> None:
        """A step took so long, and what follows from it was decided."""
        if seconds > 0:
            self._steps = self._steps.joined(seconds) if self._steps else Range(seconds, seconds)

    def note_links(self, links: Sequence[ObservedLink]) -> None:
        """Another plan was looked for with links that were as slow as these."""
        for name, slowdown in self._slowdowns(links).items():
            self._links[name] = self._range_of(name).joined(slowdown)

    def has_drifted(self, steps_s: Sequence[float]) -> bool:
        """Whether all of these steps took much more, or much less, than any before."""
        known = self._steps
        return known is not None and bool(steps_s) and all(known.is_left(each, 1 + FAR_OFF) for each in steps_s)

    def are_far_off(self, links: Sequence[ObservedLink], times: float) -> bool:
        """Whether a link is so many times slower, or faster, than the plan was judged for."""
        return any(self._range_of(name).is_left(slow, times) for name, slow in self._slowdowns(links).items())

    def _range_of(self, name: str) -> Range:
        return self._links.get(name, Range(1.0, 1.0))

    def _slowdowns(self, links: Sequence[ObservedLink]) -> dict[str, float]:
        found = {link.link_in(self.hardware).name: link.slowdown(self.hardware) for link in links}
        return {name: slowdown for name, slowdown in found.items() if slowdown}
