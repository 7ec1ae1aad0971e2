"""A plan: the problem it answers and one decision per storage that is not simply kept.

Enters: decisions from a strategy. Leaves: figures (through the simulator), text, JSON. A plan carries its whole
problem, so that it can be mailed to a colleague and re-checked there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from vdnn.cost.table import CostTable
from vdnn.plan.model.actions import Decision
from vdnn.plan.model.problem import Problem
from vdnn.plan.model.timeline import Timeline
from vdnn.units import format_nbytes, format_seconds

if TYPE_CHECKING:
    from vdnn.plan.judge.schedule import Instruction


@dataclass(frozen=True)
class Plan:
    """`variants` maps a moment to the position of its chosen alternative among `problem.variants[moment]`; a moment
    that is not listed costs what the problem's cost table says. `note` is what the strategy says about the plan as a
    whole. `bound_s`: no plan of the kinds that the strategy looked at is faster within the budget; None: it did not
    ask. `made_with` has the versions of the packages that a plan from a file was made with; it is empty for one made
    here.
    """

    problem: Problem
    strategy: str
    decisions: tuple[Decision, ...] = ()
    variants: Mapping[int, int] = field(default_factory=dict, hash=False)
    note: str = ""
    bound_s: float | None = None
    made_with: Mapping[str, str] = field(default_factory=dict, compare=False)

    @cached_property
    def costs(self) -> CostTable:
        """What each op costs under this plan."""
        if not self.variants:
            return self.problem.costs
        costs = list(self.problem.costs.ops)
        for moment, chosen in self.variants.items():
            costs[moment] = self.problem.variants[moment][chosen]
        return CostTable(tuple(costs))

    @cached_property
    def program(self) -> tuple[Instruction, ...]:
        """The plan written out. Simulator, rewriter and runtime all read it, and for 10^4 layers it takes a while."""
        from vdnn.plan.judge.schedule import schedule

        return schedule(self)

    @cached_property
    def timeline(self) -> Timeline:
        from vdnn.plan.judge.simulate import simulate

        return simulate(self)

    @property
    def peak_nbytes(self) -> int:
        return self.timeline.peak_nbytes

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
        from vdnn.plan.files.serialize import save

        return save(self, path)
