"""The judge of plans: what one training step under a plan holds and takes, without running it.

Enters: a plan. Leaves: a `Timeline` with bytes per tier and role at every instruction and busy intervals of every lane.
The one idea: bytes follow from positions alone (`residency.py`) and time from queues (`clock.py`); neither asks the
other, so a slow disk can make a plan late but never bigger. Strategies propose, this disposes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vdnn.plan.judge.clock import lanes
from vdnn.plan.judge.residency import Holdings, holdings
from vdnn.plan.judge.schedule import Instruction, schedule
from vdnn.plan.model.plan_data import PlanData
from vdnn.plan.model.timeline import ROLES, NbytesArray, Timeline


def simulate(plan: PlanData, program: Sequence[Instruction] | None = None) -> Timeline:
    """Bytes and seconds of one training step under the plan. `program` is its schedule, for whoever has it already."""
    program = schedule(plan) if program is None else program
    graph, hardware = plan.problem.graph, plan.problem.hardware
    held = holdings(plan, program)
    return Timeline(
        source="simulated",
        device=hardware.device.name,
        labels=tuple(instruction.label(graph) for instruction in program),
        moments=np.array([instruction.moment for instruction in program], dtype=np.int64),
        nbytes={tier.name: _by_role(held, k, len(program)) for k, tier in enumerate(hardware.tiers)},
        lanes=lanes(plan, program),
    )


def _by_role(held: Holdings, tier: int, length: int) -> NbytesArray:
    """One row per role, one column per instruction: add where a holding begins, take away after it ends, sum up."""
    there = held.tiers == tier
    change = np.zeros((len(ROLES), length + 1), dtype=np.int64)
    np.add.at(change, (held.roles[there], held.first[there]), held.nbytes[there])
    np.subtract.at(change, (held.roles[there], held.last[there] + 1), held.nbytes[there])
    return change.cumsum(axis=1)[:, :-1]
