"""Copies hold memory while they are under way: how much, and when.

Enters: a model and a choice per item. Leaves: rows that a solution violates, each a moment and the stretch in which
copies queue up before it or for it. The one idea: a link is a queue. What has been sent and is not out yet is still on
the device; what has to be back soon and cannot be copied in time must be there already. Both follow from one pass over
the moments, forwards for copies out and backwards for copies back, as for the waiting time in any queue (Lindley 1952).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vdnn.plan.auto.candidates import Option
from vdnn.plan.auto.program_data import ProgramData
from vdnn.plan.model.gaps import NbytesArray

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class BindingMoment:
    """A moment whose bytes are bounded. With `since`, what was sent from that moment on and is not out yet counts too;
    with `upto`, what is used up to that moment and cannot come back in time otherwise."""

    moment: int
    since: int = -1
    upto: int = -1


class Traffic:
    """Links of one model: how fast the nearest tier's are in each direction."""

    def __init__(self, model: ProgramData) -> None:
        self.model, self.elapsed_s = model, model.candidates.elapsed_s
        hardware, tiers = model.candidates.problem.hardware, model.candidates.tiers
        device = hardware.device.name
        self.out = hardware.link(device, tiers[0]).bandwidth_bytes_per_s if tiers else 1.0
        self.back = hardware.link(tiers[0], device).bandwidth_bytes_per_s if tiers else 1.0

    def nbytes(self, option: Option, *, is_out: bool) -> float:
        """What a copy counts for on the nearest tier's link. Farther ones take longer, and count for more."""
        return option.out_s * self.out if is_out else option.back_s * self.back

    def rows(
        self, choices: Sequence[int], level: NbytesArray, budget_nbytes: int, stalls: Sequence[float], link_scale: float
    ) -> list[tuple[float, BindingMoment]]:
        """Rows that do not hold, with the bytes by which they do not. `stalls` are the waits that are allowed for, by
        part of the step."""
        sent, arriving, recent = self._moved(choices)
        if not sent.any():
            return []
        found = [*self._going_out(sent, recent, link_scale), *self._coming_back(arriving, link_scale)]
        late: list[tuple[float, BindingMoment]] = []
        for row, nbytes in found:
            rate = (self.out if row.since >= 0 else self.back) / link_scale
            waited = sum(stalls[part] for part in self.parts(row, len(stalls))) * rate
            excess = float(level[row.moment]) + nbytes - budget_nbytes - waited
            if excess > 1e-6 * budget_nbytes + 1:
                late.append((excess, row))
        return late

    def parts(self, row: BindingMoment, count: int) -> range:
        """Into which parts of the step the stretch of a row falls."""
        first = row.since + 1 if row.since >= 0 else row.moment
        last = row.moment if row.since >= 0 else row.upto
        total_s = max(float(self.elapsed_s[-1]), 1e-12)
        low = int(self.elapsed_s[first] / total_s * count)
        high = int(self.elapsed_s[last] / total_s * count)
        return range(min(low, count - 1), min(high, count - 1) + 1)

    def _moved(self, choices: Sequence[int]) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Of each moment: bytes sent when it is done, used at it again, and sent before it but still used at it."""
        num_moments = len(self.model.candidates.graph)
        sent, arriving, recent = (np.zeros(num_moments + 1) for _ in range(3))
        for k, chosen in enumerate(choices):
            option = self.model.items[k].options[chosen - 1] if chosen else None
            if option is not None and option.tier is not None:
                gap, nbytes = self.model.items[k].gap, self.nbytes(option, is_out=True)
                sent[gap.final] += nbytes
                arriving[gap.until] += self.nbytes(option, is_out=False)
                recent[gap.final + 1] += nbytes
                recent[gap.leave + 1] -= nbytes
        return sent, arriving, recent.cumsum()

    def _going_out(self, sent: FloatArray, recent: FloatArray, link_scale: float) -> list[tuple[BindingMoment, float]]:
        rate, backlog, since = self.out / link_scale, 0.0, -1
        found: list[tuple[BindingMoment, float]] = []
        for moment in range(1, len(sent) - 1):
            if sent[moment - 1]:
                since = moment - 1 if backlog <= 0 else since
                backlog += float(sent[moment - 1])
            held = backlog - float(recent[moment])
            if held > 0:
                found.append((BindingMoment(moment, since=since), held))
            backlog = max(0.0, backlog - rate * float(self.elapsed_s[moment + 1] - self.elapsed_s[moment]))
        return found

    def _coming_back(self, arriving: FloatArray, link_scale: float) -> list[tuple[BindingMoment, float]]:
        rate, backlog, upto = self.back / link_scale, 0.0, -1
        found: list[tuple[BindingMoment, float]] = []
        for moment in range(len(arriving) - 3, -1, -1):
            if arriving[moment + 1]:
                upto = moment + 1 if backlog <= 0 else upto
                backlog += float(arriving[moment + 1])
            if backlog > 0:
                found.append((BindingMoment(moment, upto=upto), backlog))
            backlog = max(0.0, backlog - rate * float(self.elapsed_s[moment + 1] - self.elapsed_s[moment]))
        return found
