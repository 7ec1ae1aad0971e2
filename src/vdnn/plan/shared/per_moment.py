"""A finished plan, moment by moment: what it holds, and what it replays from.

Enters: a plan. Leaves: bytes of every moment, or the moments at which a storage is read for a replay.
"""

from __future__ import annotations

import numpy as np

from vdnn.plan.judge.schedule import Kind
from vdnn.plan.model.gaps import NbytesArray
from vdnn.plan.plan import Plan


def replay_uses(plan: Plan) -> dict[int, set[int]]:
    """Storage -> the moments at which something is replayed from it."""
    graph = plan.problem.graph
    used: dict[int, set[int]] = {}
    for instruction in plan.program if plan.decisions else ():
        if instruction.kind is Kind.REPLAY:
            for read in graph.replayed(instruction.op)[0]:
                used.setdefault(graph.values[read.value].storage, set()).add(instruction.moment)
    return used


def largest_per_moment(plan: Plan) -> NbytesArray:
    """Device bytes of every moment: of its instructions, the one that holds most."""
    nbytes = np.zeros(len(plan.problem.graph), dtype=np.int64)
    np.maximum.at(nbytes, plan.timeline.moments, plan.timeline.total())
    return nbytes
