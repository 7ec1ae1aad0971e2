"""What every op of a graph costs: seconds, and bytes it needs beyond its inputs and outputs.

Enters: a graph and a cost model (`roofline.py`, `measured.py`). Leaves: a `CostTable`, one `OpCost` per step.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OpCost:
    """`source` says how we know: "roofline", "measured", or what a test wrote."""

    seconds: float
    workspace_nbytes: int = 0
    source: str = "roofline"


@dataclass(frozen=True, slots=True)
class CostTable:
    """One cost per op, by step."""

    ops: tuple[OpCost, ...]

    def __len__(self) -> int:
        return len(self.ops)

    def __getitem__(self, step: int) -> OpCost:
        return self.ops[step]

    @property
    def total_s(self) -> float:
        return sum(cost.seconds for cost in self.ops)
