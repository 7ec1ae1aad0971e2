"""What a plan says, before anything is read off it: the problem it answers and the decisions that answer it.

Enters: decisions from a strategy, or from a file. Leaves: a frozen value that the judge takes (`judge/`), that becomes
a JSON document (`document/`), and that `Plan` (`plan/plan.py`) adds its figures to. It carries its whole problem, so
that a plan can be mailed to a colleague and re-checked there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from vdnn.cost.table import CostTable
from vdnn.plan.model.actions import Decision
from vdnn.plan.model.problem import Problem


@dataclass(frozen=True)
class PlanData:
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
