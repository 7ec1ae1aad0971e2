"""A plan: decisions with what follows from them, the program, the bytes and the seconds.

Enters: decisions from a strategy. Leaves: figures (through the simulator), text, JSON. The data itself is `PlanData`;
what is added here is found once and remembered.
"""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from pathlib import Path

from vdnn.plan.document.serialize import save
from vdnn.plan.judge.schedule import Instruction, schedule
from vdnn.plan.judge.simulate import simulate
from vdnn.plan.model.plan_data import PlanData
from vdnn.plan.model.timeline import Timeline
from vdnn.units import Nbytes, format_nbytes, format_seconds


class Plan(PlanData):
    """The problem, one decision per storage that is not simply kept, and what the simulator says of them."""

    @classmethod
    def of(cls, data: PlanData) -> Plan:
        """The same decisions, with their figures."""
        return cls(data.problem, data.strategy, data.decisions, data.variants, data.note, data.bound_s, data.made_with)

    @cached_property
    def program(self) -> tuple[Instruction, ...]:
        """The plan written out. Simulator, rewriter and runtime all read it, and for 10^4 layers it takes a while."""
        return schedule(self)

    @cached_property
    def timeline(self) -> Timeline:
        return simulate(self, self.program)

    @property
    def peak_nbytes(self) -> Nbytes:
        return Nbytes(self.timeline.peak_nbytes)

    @property
    def step_time_s(self) -> float:
        return self.timeline.duration_s

    @property
    def gap(self) -> float | None:
        """The share of the step time by which a better plan could at most be faster; None where no bound is known."""
        if self.bound_s is None or not self.step_time_s:
            return None
        return max(0.0, 1 - self.bound_s / self.step_time_s)

    def __str__(self) -> str:
        """A few lines: what was asked, what it comes to, and what fills the peak."""
        graph, timeline = self.problem.graph, self.timeline
        kinds = Counter(decision.action.kind for decision in self.decisions)
        roles = timeline.by_role(timeline.peak_at) if timeline.labels else {}
        budget_nbytes = self.problem.budget_nbytes
        asked = "no budget" if budget_nbytes is None else f"budget {format_nbytes(budget_nbytes)}"
        took = f"step time {format_seconds(self.step_time_s)} (stalls {format_seconds(timeline.stall_s)})"
        took += "" if self.gap is None else f", at most {self.gap:.1%} above the best possible"
        lines = [
            f"{graph.name}: {self.strategy} on {self.problem.hardware.name}, {len(graph)} ops, {asked}",
            f"peak {format_nbytes(self.peak_nbytes)}, {took}",
            "decisions: "
            + (", ".join(f"{count} {kind}" for kind, count in kinds.items()) or "none, everything is kept"),
            "at the peak: "
            + (", ".join(f"{format_nbytes(nbytes)} {role}" for role, nbytes in roles.items()) or "nothing"),
        ]
        if self.problem.form:
            other_bits = "" if self.problem.is_exact else " (INEXACT: sums in another order)"
            lines.append(f"form of the step: {self.problem.form}{other_bits}")
        if self.variants:
            most = max(self.costs[moment].workspace_nbytes for moment in self.variants)
            lines.append(f"variants chosen for {len(self.variants)} ops, workspace up to {format_nbytes(most)}")
            inexact = Counter(self.costs[moment].variant for moment in self.variants if not self.costs[moment].exact)
            names = ", ".join(f"{count} {variant}" for variant, count in inexact.items())
            lines += [f"INEXACT: {inexact.total()} ops sum in another order ({names})"] if inexact else []
        return "\n".join([*lines, *([self.note] if self.note else [])])

    def save(self, path: str | Path) -> Path:
        """Write the plan with its problem as JSON."""
        return save(self, path)
