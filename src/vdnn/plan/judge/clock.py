"""When each lane is busy: compute, and every link direction.

Enters: a plan and its program. Leaves: a `Lane` per engine. The one idea: compute and copies are queues that meet only
where the program waits. Compute takes instructions in order; each link direction is first in, first out; LEAVE waits
until the copy out has left the device and ARRIVE until the copy back is there. These waits are the stalls of vDNN
(MICRO 2016, section 3): they cost time, never bytes.

Copies also cost the compute beside them, where a link has a drag (`drag.py`): ops that run while a copy is under way
last longer. A copy that compute waits for costs the wait and nothing else.

A tier two links away is reached hop by hop, each hop starting when the one before it has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from vdnn.hardware.device import Hardware, Link
from vdnn.plan.judge.drag import Drag
from vdnn.plan.judge.schedule import Instruction, Kind
from vdnn.plan.model.actions import Encode, EncodeOffload, Offload
from vdnn.plan.model.plan_data import PlanData
from vdnn.plan.model.timeline import COMPUTE, Lane


def lanes(plan: PlanData, program: Sequence[Instruction]) -> dict[str, Lane]:
    """The busy intervals of compute and of every link of the hardware, used or not."""
    clock = _Clock(plan)
    enter = clock.entries()
    for position, instruction in enumerate(program):
        enter[instruction.kind](position, instruction)
    return {name: log.lane() for name, log in clock.logs.items()}


def route(hardware: Hardware, tier: str) -> tuple[Link, ...]:
    """The links from the device to a tier, in order: each tier is joined to the one before it."""
    names = [t.name for t in hardware.tiers]
    reach = names[: names.index(hardware.tier(tier).name) + 1]
    return tuple(hardware.link(source, target) for source, target in pairwise(reach))


def both_ways(hardware: Hardware, tier: str) -> tuple[tuple[Link, ...], tuple[Link, ...]]:
    """The links to a tier and those back, each in the order in which a copy takes them."""
    out = route(hardware, tier)
    return out, tuple(hardware.link(link.target, link.source) for link in reversed(out))


class _Log:
    """One lane while it is written: when it is free again, and what kept it busy."""

    def __init__(self) -> None:
        self.free_s = 0.0
        self.instructions: list[int] = []
        self.begin_s: list[float] = []
        self.end_s: list[float] = []

    def occupy(self, position: int, earliest_s: float, seconds: float) -> float:
        """Take the lane as soon as it is free after `earliest_s`; the time at which it is free again."""
        begin_s = max(self.free_s, earliest_s)
        return self.enter(position, begin_s, begin_s + seconds)

    def enter(self, position: int, begin_s: float, end_s: float) -> float:
        """The lane was taken from `begin_s` until `end_s`; it is free from then on."""
        self.free_s = end_s
        self.instructions.append(position)
        self.begin_s.append(begin_s)
        self.end_s.append(self.free_s)
        return self.free_s

    def lane(self) -> Lane:
        return Lane(
            np.array(self.instructions, dtype=np.int64),
            np.array(self.begin_s, dtype=np.float64),
            np.array(self.end_s, dtype=np.float64),
        )


class _Clock:
    def __init__(self, plan: PlanData) -> None:
        self.plan = plan
        self.hardware = plan.problem.hardware
        self.seconds = [cost.seconds for cost in plan.costs.ops]
        self.logs = {COMPUTE: _Log()} | {link.name: _Log() for link in self.hardware.links}
        self.drag = Drag(self.hardware)
        self.now_s = 0.0  # of the thread that issues the program
        self.left_s: dict[int, float] = {}  # decision -> when its copy out has left the device
        self.stored_s: dict[int, float] = {}  # decision -> when it is in its tier
        self.arrived_s: dict[int, float] = {}  # decision -> when its copy back is there
        self.routes: dict[str, tuple[tuple[Link, ...], tuple[Link, ...]]] = {}

    def entries(self) -> dict[Kind, Callable[[int, Instruction], None]]:
        return {
            Kind.RUN: self.run,
            Kind.REPLAY: self.run,
            Kind.SEND: self.send,
            Kind.LEAVE: self.leave,
            Kind.FETCH: self.fetch,
            Kind.ARRIVE: self.arrive,
            Kind.ENCODE: self.convert,
            Kind.DECODE: self.convert,
        }

    def run(self, position: int, instruction: Instruction) -> None:
        self._compute(position, self.seconds[instruction.op])

    def send(self, position: int, instruction: Instruction) -> None:
        finished_s = self._copy(position, instruction, self.now_s, outward=True)
        self.left_s[instruction.decision], self.stored_s[instruction.decision] = finished_s[0], finished_s[-1]

    def leave(self, position: int, instruction: Instruction) -> None:
        self.now_s = max(self.now_s, self.left_s.get(instruction.decision, 0.0))

    def fetch(self, position: int, instruction: Instruction) -> None:
        earliest_s = max(self.now_s, self.stored_s[instruction.decision])
        self.arrived_s[instruction.decision] = self._copy(position, instruction, earliest_s, outward=False)[-1]

    def arrive(self, position: int, instruction: Instruction) -> None:
        self.now_s = max(self.now_s, self.arrived_s[instruction.decision])

    def convert(self, position: int, instruction: Instruction) -> None:
        self._compute(position, self._codec_s(instruction))

    def _compute(self, position: int, seconds: float) -> None:
        end_s = self.drag.end_s(self.now_s, seconds)
        self.now_s = self.logs[COMPUTE].enter(position, self.now_s, end_s)

    def _copy(self, position: int, instruction: Instruction, earliest_s: float, *, outward: bool) -> list[float]:
        """Queue the copy on each link of its way; when each hop ends."""
        action = self.plan.decisions[instruction.decision].action
        assert isinstance(action, Offload | EncodeOffload), f"{action.kind} does not travel"
        nbytes = self.plan.problem.graph.storages[instruction.storage].nbytes
        if isinstance(action, EncodeOffload):
            nbytes = action.nbytes
        finished_s: list[float] = []
        for link in self._links(action.tier, outward=outward):
            log = self.logs[link.name]
            earliest_s = log.occupy(position, earliest_s, link.seconds(nbytes))
            self.drag.copy(link, log.begin_s[-1], earliest_s)
            finished_s.append(earliest_s)
        return finished_s

    def _links(self, tier: str, *, outward: bool) -> tuple[Link, ...]:
        if tier not in self.routes:
            self.routes[tier] = both_ways(self.hardware, tier)
        return self.routes[tier][0 if outward else 1]

    def _codec_s(self, instruction: Instruction) -> float:
        action = self.plan.decisions[instruction.decision].action
        assert isinstance(action, Encode | EncodeOffload), f"{action.kind} has no codec"
        return action.encode_s if instruction.kind is Kind.ENCODE else action.decode_s
