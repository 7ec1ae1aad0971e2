"""The arena of a plan on an accelerator: what lies in it, where, and what lies outside.

Enters: a plan. Leaves: a `StepArena`. What is there before the step, what its caller gets (outputs, gradients) and what
autograd hands it lie outside: they live for as long as somebody else says, and an arena in which one of them lay could
not be given back. So the arena and what lies outside are reserved together, all the time, and a budget has to hold
both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from vdnn.ir import Role
from vdnn.plan.addresses.layout import TimedBlock
from vdnn.plan.addresses.pack_whole import pack_whole
from vdnn.plan.judge.residency import Column, Holdings, holdings
from vdnn.plan.model.actions import Encode, EncodeOffload
from vdnn.plan.model.surroundings import ACCELERATOR_BLOCK_NBYTES
from vdnn.plan.model.timeline import ROLES
from vdnn.plan.plan import Plan
from vdnn.units import KiB

_WORKSPACE = -1  # the storage of what an op takes for itself

COUNTS_NBYTES = 64 * KiB
"""At the end of an arena, where a plan encodes: numbers on the device that are read late, and others as small."""

OUTSIDE = -1
"""The offset of what has no place in the arena."""

_DEVICE = 0  # the device is the first tier
_THERE_BEFORE = (Role.PARAMETER, Role.BUFFER, Role.OPTIMIZER_STATE, Role.INPUT)


class Block(NamedTuple):
    """Bytes of a storage from one instruction to another; of `_WORKSPACE`, what an op takes for itself."""

    nbytes: int
    begin: int
    end: int
    storage: int

    @property
    def timed(self) -> TimedBlock:
        return TimedBlock(self.nbytes, self.begin, self.end)


@dataclass(frozen=True, slots=True)
class Guide:
    """What a plan says of a block: who asks for `nbytes` at instruction `begin`, for this storage, gets them at
    `offset` up to `end`."""

    nbytes: int
    begin: int
    end: int
    storage: int
    offset: int


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
    of_caller = {graph.values[value].storage for value in graph.held}
    rows = [
        row for row in zip(*(column.tolist() for column in _columns(held)), strict=True) if row[0] == _DEVICE and row[2]
    ]
    inside, outside, outside_nbytes = [], [], {}
    for _, row, nbytes, first, last, storage in rows:
        block, role = Block(nbytes, first, last + 1, storage), ROLES[row]
        is_there = role in _THERE_BEFORE or storage in from_autograd
        if is_there or storage in of_caller or role in (Role.GRADIENT, Role.OUTPUT):
            outside_nbytes[storage] = _rounded(nbytes)
            outside += [] if is_there else [block]
        else:
            inside.append(block)
    inside, below = _with_workspaces_below(inside, outside)
    layout = pack_whole([block.timed for block in inside], ACCELERATOR_BLOCK_NBYTES, below=below)
    places = zip(inside, layout.places, strict=True)
    guides = [Guide(*block, extent.begin) for block, (extent,) in places if block.storage != _WORKSPACE]
    guides += [Guide(*block, OUTSIDE) for block in outside]
    by_begin = tuple(sorted(guides, key=lambda guide: guide.begin))
    counts_nbytes = COUNTS_NBYTES if any(isinstance(d.action, Encode | EncodeOffload) for d in plan.decisions) else 0
    return StepArena(by_begin, layout.arena_nbytes + counts_nbytes, layout.peak_nbytes, sum(outside_nbytes.values()))


def _columns(held: Holdings) -> tuple[Column, ...]:
    return held.tiers, held.roles, held.nbytes, held.first, held.last, held.storages


def _rounded(nbytes: int) -> int:
    return -(-nbytes // ACCELERATOR_BLOCK_NBYTES) * ACCELERATOR_BLOCK_NBYTES


def _with_workspaces_below(inside: list[Block], outside: list[Block]) -> tuple[list[Block], dict[int, int]]:
    """Workspaces with room for their op's results, and which of them lie directly below a result.

    What an op takes for itself was measured as the most that it had at once less its results, and it may have that
    before its results are there, in blocks that need the room of both in one run. So a workspace is larger by what the
    results take. Where that would raise the peak, the largest result lies directly above its workspace instead."""
    results: dict[int, list[int]] = {}
    for number, block in enumerate(inside):
        if block.storage != _WORKSPACE:
            results.setdefault(block.begin, []).append(number)
    others: dict[int, int] = {}
    for block in outside:
        others[block.begin] = others.get(block.begin, 0) + _rounded(block.nbytes)
    alive, below, found = _alive(inside), {}, list(inside)
    for number, block in enumerate(inside):
        if block.storage != _WORKSPACE:
            continue
        made = sorted(results.get(block.begin, ()), key=lambda each: inside[each].nbytes)
        made_nbytes = others.get(block.begin, 0) + sum(_rounded(inside[each].nbytes) for each in made)
        if made and alive[block.begin] + made_nbytes > max(alive):
            below[made[-1]] = number
            made_nbytes -= _rounded(inside[made[-1]].nbytes)
        found[number] = block._replace(nbytes=block.nbytes + made_nbytes)
    return found, below


def _alive(blocks: Sequence[Block]) -> list[int]:
    """Bytes at every instruction."""
    changes = [0] * (max((block.end for block in blocks), default=0) + 1)
    for block in blocks:
        changes[block.begin] += _rounded(block.nbytes)
        changes[block.end] -= _rounded(block.nbytes)
    return list(accumulate(changes))
