"""What happens over one training step: bytes per tier, split by role, at every moment, and when each lane is busy.

One type for both sides: `simulate` makes one from a plan, the runtime makes one from a real step, and the report lays
them side by side. Lanes are "compute" and one per link direction ("device->host"); an interval carries the position of
its instruction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from vdnn.ir import Role

ROLES = tuple(Role)
ROW_OF_ROLE = {role: row for row, role in enumerate(ROLES)}
COMPUTE = "compute"

NbytesArray = npt.NDArray[np.int64]
Seconds = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Lane:
    """Busy intervals of one engine: instruction i = `instructions[k]` occupied it from `begin_s[k]` to `end_s[k]`."""

    instructions: npt.NDArray[np.int64]
    begin_s: Seconds
    end_s: Seconds

    @property
    def busy_s(self) -> float:
        return float((self.end_s - self.begin_s).sum())


@dataclass(frozen=True)
class Timeline:
    """`nbytes[tier]` has one row per role (in the order of `Role`) and one column per instruction.

    `labels` names the instructions, `moments` the graph moment each belongs to. `source` is "simulated" or "measured".
    """

    source: str
    device: str
    labels: tuple[str, ...]
    moments: npt.NDArray[np.int64]
    nbytes: Mapping[str, NbytesArray]
    lanes: Mapping[str, Lane] = field(default_factory=dict)

    def total(self, tier: str | None = None) -> NbytesArray:
        """Bytes of a tier (the device, unless told) at every instruction."""
        return self.nbytes[tier or self.device].sum(axis=0)

    @property
    def peak_nbytes(self) -> int:
        total = self.total()
        return int(total.max()) if total.size else 0

    @property
    def peak_at(self) -> int:
        """Position of the first instruction that reaches the peak."""
        total = self.total()
        return int(total.argmax()) if total.size else 0

    @property
    def average_nbytes(self) -> float:
        """Mean over instructions of the device's live bytes."""
        total = self.total()
        return float(total.mean()) if total.size else 0.0

    def by_role(self, at: int, tier: str | None = None) -> dict[Role, int]:
        column = self.nbytes[tier or self.device][:, at]
        return {role: int(nbytes) for role, nbytes in zip(ROLES, column, strict=True) if nbytes}

    @property
    def duration_s(self) -> float:
        """From the start of the step to the end of the last interval on any lane."""
        ends = [float(lane.end_s.max()) for lane in self.lanes.values() if lane.end_s.size]
        return max(ends, default=0.0)

    @property
    def stall_s(self) -> float:
        """Time in which the compute lane waited."""
        compute = self.lanes.get(COMPUTE)
        # Sums of seconds round: a step that never waits would have waited for minus a femtosecond.
        return 0.0 if compute is None else max(0.0, self.duration_s - compute.busy_s)
