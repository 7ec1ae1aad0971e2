"""What every op of a graph costs: seconds, and bytes it needs beyond its inputs and outputs.

Enters: a graph and a cost model (`roofline.py`, `measured.py`). Leaves: a `CostTable`, one `OpCost` per op.
"""

from __future__ import annotations

from dataclasses import dataclass

LONGEST_S = 1e9  # thirty years: what is above was never measured nor estimated, and sums of it would not be finite


@dataclass(frozen=True, slots=True)
class OpCost:
    """`source` says how we know: "roofline", "measured", "measured beside others", or what a test wrote.

    `variant` names the way of computing that costs this, empty for the op as it was traced. `exact` is whether its
    result has the bits of the op's own. Neither is negative, and nothing takes for ever.
    """

    seconds: float
    workspace_nbytes: int = 0
    source: str = "roofline"
    variant: str = ""
    exact: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.seconds <= LONGEST_S:
            raise ValueError(f"an op takes 0 to {LONGEST_S:g} s, not {self.seconds}")
        if self.workspace_nbytes < 0:
            raise ValueError(f"a workspace cannot be negative: {self.workspace_nbytes} bytes")


@dataclass(frozen=True, slots=True)
class CostTable:
    """One cost per op, by moment."""

    ops: tuple[OpCost, ...]

    def __len__(self) -> int:
        return len(self.ops)

    def __getitem__(self, moment: int) -> OpCost:
        return self.ops[moment]

    @property
    def total_s(self) -> float:
        return sum(cost.seconds for cost in self.ops)
