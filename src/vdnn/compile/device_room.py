"""What an accelerator has for the steps of a model of which no budget was named.

Enters: a plan without a budget. Leaves: the same plan where the device has ample room for it, else one within what the
device has free, less a reserve. The one idea: **a budget that nobody named is not a promise**. It is a way to train
what would not fit otherwise: where there is room enough everything is kept, and where there is not, the number that was
found is planned with as if it had been named, and the report says where it comes from. A model runs in pieces as it
would without it. RAM has no such number: a system that is short of it pages, and its own budget is to be named.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import torch

from vdnn.compile.traced_step import PlannedStep
from vdnn.errors import Infeasible
from vdnn.ir import Role
from vdnn.options import Options
from vdnn.plan.plan import Plan
from vdnn.plan.shared.account import account_nbytes
from vdnn.report.process_part import RoomPart
from vdnn.units import Nbytes

log = logging.getLogger("vdnn")

RESERVE_SHARE = 1 / 16
"""Of what is free, left to what no plan counts: what the allocator keeps between blocks, libraries' own workspaces,
what little is computed outside. Assumed until real devices have been measured. A budget that is named leaves as little
as one likes."""

MOST_RESERVED = 0.5
"""Of what is free: a device on which more than that is lost is not one whose memory this process shares out."""

AMPLE_SHARE = 0.5
"""Of the room: a plan without a budget knows no workspaces of ops, and keeps everything unasked only where they may be
as large as all that it does know."""

_ITS_OWN = (Role.PARAMETER, Role.BUFFER, Role.INPUT)


class DeviceRoom:
    """What one model is held to on its accelerator, found at the first shape and kept."""

    def __init__(self, where: torch.device) -> None:
        self._where = where
        self.found: RoomPart | None = None
        self._num_before = 0

    def of(self, plan: Plan) -> RoomPart:
        if self.found is None:
            self.found = _room_beside(plan, self._where)
        return self.found

    def options(self, asked: Options) -> Options:
        """Those that are planned with: what was asked, within the room where that is needed."""
        if self.found is None or not self.found.is_needed:
            return asked
        return replace(asked, budget=Nbytes(self.found.nbytes))

    def need(self) -> None:
        assert self.found is not None, "a plan has shown that it does not fit"
        if not self.found.is_needed:
            self.found = replace(self.found, is_needed=True)
            log.info("%s", self.found.words)

    def begin(self) -> None:
        """What ran out of memory so far were trials, or others' steps."""
        self._num_before = _num_out_of_memory(self._where)

    def leave_more(self) -> bool:
        """Whether something ran out of memory on the device since steps began; then as much again is left."""
        if self.found is None or _num_out_of_memory(self._where) <= self._num_before:
            return False
        self.begin()
        torch.accelerator.empty_cache()  # what the step that failed has left with the allocator
        if not self.found.is_needed:
            self.need()
            return True
        usable_nbytes = self.found.usable_nbytes
        reserve_nbytes = min(2 * self.found.reserve_nbytes, int(MOST_RESERVED * usable_nbytes))
        is_more = reserve_nbytes > self.found.reserve_nbytes
        self.found = replace(self.found, nbytes=usable_nbytes - reserve_nbytes, reserve_nbytes=reserve_nbytes)
        log.warning("%s ran out of memory, and leaves more of it from now on. %s", self._where, self.found.words)
        return is_more


def plan_on_device(plan_within: Callable[[Options], PlannedStep], asked: Options, room: DeviceRoom) -> PlannedStep:
    """What `plan_within` decides under these options, within the device's room where more than that is not there."""
    if asked.budget is not None or asked.plan is not None:
        return plan_within(asked)
    planned = _planned(plan_within, asked, room)
    room.begin()
    return planned


def _planned(plan_within: Callable[[Options], PlannedStep], asked: Options, room: DeviceRoom) -> PlannedStep:
    if room.options(asked) is asked:
        planned = plan_within(asked)
        plan = planned.plan
        if account_nbytes(plan, plan.problem.surroundings) <= AMPLE_SHARE * room.of(plan).nbytes:
            return planned
        room.need()
    try:
        return plan_within(room.options(asked))
    except Infeasible as reason:
        assert room.found is not None, "there is a bound"
        words, minimum_nbytes, way_out = f"{reason}\n{room.found.words}", reason.minimum_nbytes, reason.way_out
        raise Infeasible(words, minimum_nbytes=minimum_nbytes, way_out=way_out) from reason


def _room_beside(plan: Plan, where: torch.device) -> RoomPart:
    """What is free there, with all that the allocator can give back, and what this model's tensors have already: a plan
    counts them. What lies idle between blocks that are in use may be too scattered to be of use."""
    torch.accelerator.empty_cache()
    own_nbytes = sum(storage.nbytes for storage in plan.problem.graph.storages if storage.role in _ITS_OWN)
    free_nbytes, device_nbytes = torch.accelerator.get_memory_info(where)
    usable_nbytes = free_nbytes + own_nbytes
    reserve_nbytes = int(RESERVE_SHARE * usable_nbytes)
    return RoomPart(str(where), max(usable_nbytes - reserve_nbytes, 1), usable_nbytes, reserve_nbytes, device_nbytes)


def _num_out_of_memory(where: torch.device) -> int:
    """How often the allocator had to say so; 0 where it does not count that."""
    return int(torch.accelerator.memory_stats(where).get("num_ooms", 0))
