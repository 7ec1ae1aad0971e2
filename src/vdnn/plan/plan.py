"""A plan: the problem it answers and one decision per storage that is not simply kept.

Enters: decisions from a strategy. Leaves: figures (through the simulator), text, JSON. A plan carries its whole problem, so that it
can be mailed to a colleague and re-checked there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from vdnn.plan.actions import Decision
from vdnn.plan.problem import Problem
from vdnn.plan.timeline import Timeline


@dataclass(frozen=True)
class Plan:
    problem: Problem
    strategy: str
    decisions: tuple[Decision, ...] = ()

    @cached_property
    def timeline(self) -> Timeline:
        from vdnn.plan.simulate import simulate

        return simulate(self)

    @property
    def peak_nbytes(self) -> int:
        return self.timeline.peak_nbytes

    @property
    def step_time_s(self) -> float:
        return self.timeline.duration_s

    def save(self, path: str | Path) -> Path:
        """Write the plan with its problem as JSON."""
        from vdnn.plan.serialize import save

        return save(self, path)
