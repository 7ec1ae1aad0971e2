"""The arena of a plan on an accelerator: what lies in it, where, and what lies outside.

Enters: a plan. Leaves: a `StepArena`. What is there before the step, what its caller gets (outputs, gradients) and what
autograd hands it lie outside: they live for as long as somebody else says, and an arena in which one of them lay could
not be given back. So the arena and what lies outside are reserved together, all the time, and a budget has to hold
both.
"""

from __future__ import annotations

from dataclasses import dataclass

from vdnn.ir import Role
from vdnn.plan.addresses.layout import TimedBlock
from vdnn.plan.addresses.pack_whole import pack_whole
from vdnn.plan.judge.residency import holdings
from vdnn.plan.model.surroundings import ACCELERATOR_BLOCK_NBYTES
from vdnn.plan.model.timeline import ROLES
from vdnn.plan.plan import Plan

_WORKSPACE = -1  # the storage of what an op takes for itself

OUTSIDE = -1
"""The offset of what has no place in the arena."""

_DEVICE = 0  # the device is the first tier
_THERE_BEFORE = (Role.PARAMETER, Role.BUFFER, Role.OPTIMIZER_STATE, Role.INPUT)


@dataclass(frozen=True, slots=True)
class Guide:
    """What a plan says of a block: who asks for `nbytes` at instruction `begin`, for this storage, gets them at
    `offset` up to `end`."""

    nbytes: int
    begin: int
    end: int
    offset: int
    storage: int


@dataclass(frozen=True, slots=True)
class StepArena:
    """`peak_nbytes` is what lies in the arena at most: none is smaller. `guides` are by `begin`; workspaces are not
    among them, though they have room."""

    guides: tuple[Guide, ...]
    nbytes: int
    peak_nbytes: int
    outside_nbytes: int

    @property
    def reserved_nbytes(self) -> int:
        """What the device's allocator holds for the step."""
        return self.nbytes + self.outside_nbytes

    @property
    def waste_nbytes(self) -> int:
        return self.nbytes - self.peak_nbytes


def step_arena(plan: Plan) -> StepArena:
    graph, held = plan.problem.graph, holdings(plan, plan.program)
    from_autograd = {graph.values[value].storage for value in graph.tangents}
    of_caller = {graph.values[value].storage for value in graph.held} | from_autograd
    inside, outside, outside_nbytes = [], [], {}
    for tier, row, nbytes, first, last, storage in zip(
        held.tiers, held.roles, held.nbytes, held.first, held.last, held.storages, strict=True
    ):
        if tier != _DEVICE or not nbytes:
            continue
        block, role = TimedBlock(int(nbytes), int(first), int(last) + 1), ROLES[row]
        if role in _THERE_BEFORE or storage in of_caller or role in (Role.GRADIENT, Role.OUTPUT):
            outside_nbytes[int(storage)] = -(-block.nbytes // ACCELERATOR_BLOCK_NBYTES) * ACCELERATOR_BLOCK_NBYTES
            if role not in _THERE_BEFORE and storage not in from_autograd:
                outside.append(Guide(*block, OUTSIDE, int(storage)))
        else:
            inside.append((block, int(storage)))
    layout = pack_whole([block for block, _ in inside], ACCELERATOR_BLOCK_NBYTES)
    guides = [
        Guide(*block, extent.begin, storage)
        for (block, storage), (extent,) in zip(inside, layout.places, strict=True)
        if storage != _WORKSPACE
    ]
    by_begin = tuple(sorted([*outside, *guides], key=lambda guide: guide.begin))
    return StepArena(by_begin, layout.arena_nbytes, layout.peak_nbytes, sum(outside_nbytes.values()))
