"""The addresses of a plan: what its step takes and gives back, packed into one arena.

Enters: a plan. Leaves: its blocks and their `Layout`. What is there before the step and stays (parameters, buffers,
optimizer state, inputs) is outside of the arena. What the caller keeps (outputs, gradients) has addresses outside too,
but its pages come out of the arena, so it has its place there to the end of the step (`runtime/step_memory/`).
"""

from __future__ import annotations

from vdnn.ir import Role
from vdnn.plan.addresses.layout import SMALLEST_NBYTES, Layout, TimedBlock
from vdnn.plan.addresses.pack import pack
from vdnn.plan.judge.residency import holdings
from vdnn.plan.model.timeline import ROW_OF_ROLE
from vdnn.plan.plan import Plan

_DEVICE = 0  # the device is the first tier
_STAYS = {ROW_OF_ROLE[role] for role in (Role.PARAMETER, Role.BUFFER, Role.OPTIMIZER_STATE, Role.INPUT)}


def blocks_of(plan: Plan) -> list[TimedBlock]:
    """Everything of a step that comes and goes on the device, over the instructions of the plan's program."""
    held = holdings(plan, plan.program)
    rows = zip(held.tiers, held.roles, held.nbytes, held.first, held.last, strict=True)
    return [
        TimedBlock(int(nbytes), int(first), int(last) + 1)
        for tier, role, nbytes, first, last in rows
        if tier == _DEVICE and role not in _STAYS and nbytes >= SMALLEST_NBYTES
    ]


def planned_layout(plan: Plan) -> Layout:
    """Where everything that comes and goes lies while the plan's step runs."""
    return pack(blocks_of(plan))
