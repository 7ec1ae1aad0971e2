"""The vDNN paper's networks with their plans on its machine, each made once and only when a table asks for it.

Enters: a graph. Leaves: plans of the paper's policies and of this project's strategy, whole-card or as small as theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from vdnn.errors import Infeasible
from vdnn.hardware.presets import preset
from vdnn.ir import Graph
from vdnn.papers.paper_table import BLANK, Figure, percent
from vdnn.papers.vdnn_tables import PAPER_DEVICE, baseline_nbytes, paper_problem
from vdnn.plan.plan import Plan
from vdnn.plan.strategy_table import solve

DEEP = ("VGG-116(32)", "VGG-216(32)", "VGG-316(32)", "VGG-416(32)")
OURS = "auto"


@dataclass
class Planned:
    """A network and its plans on the paper's machine, each made once."""

    graph: Graph

    @property
    def card_nbytes(self) -> int:
        nbytes = preset(PAPER_DEVICE).device.nbytes
        assert nbytes is not None, f"the preset {PAPER_DEVICE} has a size"
        return nbytes

    @cached_property
    def baseline_nbytes(self) -> int:
        return baseline_nbytes(paper_problem(self.graph))

    @cached_property
    def oracle(self) -> Plan:
        """Everything kept, on a card that has room for it."""
        return solve(paper_problem(self.graph), "keep-all")

    @cached_property
    def every(self) -> Plan:
        return solve(paper_problem(self.graph), "vdnn-all(m)")

    @cached_property
    def conv(self) -> Plan:
        return solve(paper_problem(self.graph), "vdnn-conv(m)")

    @cached_property
    def dyn(self) -> Plan | None:
        return self._within(self.card_nbytes, "vdnn-dyn")

    @cached_property
    def ours(self) -> Plan | None:
        """On the whole card: as fast as it can be."""
        return self._within(self.card_nbytes, OURS)

    @cached_property
    def ours_small(self) -> Plan | None:
        """In the bytes of vdnn-all(m)."""
        return self._within(self.every.peak_nbytes, OURS)

    def overhead(self, plan: Plan | None) -> Figure:
        """Time over the oracle's, beyond it."""
        return BLANK if plan is None else percent(plan.step_time_s / self.oracle.step_time_s - 1)

    def _within(self, budget_nbytes: int, strategy: str) -> Plan | None:
        try:
            return solve(paper_problem(self.graph, budget_nbytes), strategy)
        except Infeasible:
            return None


Networks = Mapping[str, Planned]
