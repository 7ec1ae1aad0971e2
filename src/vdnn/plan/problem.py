"""What is asked: a graph with its costs, a machine, and the bytes that the peak must stay within."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from vdnn.cost.table import CostTable, OpCost
from vdnn.hardware.device import Hardware
from vdnn.ir import Graph


@dataclass(frozen=True, slots=True)
class Problem:
    """`budget_nbytes` bounds the device tier at every step, everything included. None: no bound was asked for.

    `variants` maps a step to other ways of computing it, fastest first: the algorithms of a convolution, each with its
    own time and workspace. A plan picks one; where it picks none, `costs` holds.
    """

    graph: Graph
    costs: CostTable
    hardware: Hardware
    budget_nbytes: int | None = None
    variants: Mapping[int, tuple[OpCost, ...]] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if len(self.costs) != len(self.graph):
            raise ValueError(f"{len(self.graph)} ops but {len(self.costs)} costs: the cost table is of another graph")
        if self.budget_nbytes is not None and self.budget_nbytes < 0:
            raise ValueError(f"a budget cannot be negative: {self.budget_nbytes}")
        for step, offered in self.variants.items():
            if not 0 <= step < len(self.graph):
                raise ValueError(f"variants of step {step}, but the graph has steps 0 to {len(self.graph) - 1}")
            seconds = [cost.seconds for cost in offered]
            if not offered or seconds != sorted(seconds):
                raise ValueError(f"the variants of step {step} must be some, fastest first, not {seconds}")
