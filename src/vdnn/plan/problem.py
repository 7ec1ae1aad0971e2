"""What is asked: a graph with its costs, a machine, and the bytes that the peak must stay within."""

from __future__ import annotations

from dataclasses import dataclass

from vdnn.cost.table import CostTable
from vdnn.hardware.device import Hardware
from vdnn.ir import Graph


@dataclass(frozen=True, slots=True)
class Problem:
    """`budget_nbytes` bounds the device tier at every step, everything included. None: no bound was asked for."""

    graph: Graph
    costs: CostTable
    hardware: Hardware
    budget_nbytes: int | None = None

    def __post_init__(self) -> None:
        if len(self.costs) != len(self.graph):
            raise ValueError(f"{len(self.graph)} ops but {len(self.costs)} costs: the cost table is of another graph")
        if self.budget_nbytes is not None and self.budget_nbytes < 0:
            raise ValueError(f"a budget cannot be negative: {self.budget_nbytes}")
