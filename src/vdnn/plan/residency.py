"""Who holds bytes where, from which instruction to which.

Enters: a plan and its program. Leaves: `Holding`s, each a number of bytes in one tier over a run of instructions;
whoever wants a peak adds them up, whoever wants to know what fills it sorts them. The one idea is SuperNeurons'
liveness analysis (PPoPP 2018) over the program instead of over the graph: a storage lives from the instruction that
makes it whole to the last one that touches it before it leaves, so a copy out, a decoder or a replay is a touch like
any other.

Bytes that pass through a tier on the way to a slower one are not held there: transfers run in small pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from vdnn.ir import Role
from vdnn.plan.actions import Encode, EncodeOffload, Offload
from vdnn.plan.plan import Plan
from vdnn.plan.schedule import Instruction, Kind


class Holding(NamedTuple):  # a tuple, not a dataclass: a large plan makes a hundred thousand of them
    """`nbytes` in `tier` from instruction `first` to instruction `last`, both included. `storage` is -1: workspace."""

    tier: str
    role: Role
    nbytes: int
    first: int
    last: int
    storage: int = -1


def holdings(plan: Plan, program: Sequence[Instruction]) -> list[Holding]:
    """Everything that holds bytes in any tier while the program runs."""
    if not program:
        return []
    book = _Book(plan, program)
    enter = book.entries()
    for position, instruction in enumerate(program):
        enter[instruction.kind](position, instruction)
    return book.closed(len(program) - 1)


class _Book:
    """Open entries per storage: `since` is the instruction at which its bytes were taken, or -1 while it holds none."""

    def __init__(self, plan: Plan, program: Sequence[Instruction]) -> None:
        graph = plan.problem.graph
        self.plan, self.graph, self.costs = plan, graph, plan.problem.costs
        self.device = plan.problem.hardware.device.name
        self.storage_of = [value.storage for value in graph.values]
        self.since = [-1] * len(graph.storages)
        self.touched = [-1] * len(graph.storages)
        self.encoded_since: dict[int, int] = {}
        self.stored_since: dict[int, int] = {}
        self.holdings: list[Holding] = []
        self._expect_inputs(program)

    def entries(self) -> dict[Kind, Callable[[int, Instruction], None]]:
        return {
            Kind.RUN: self.run,
            Kind.REPLAY: self.replay,
            Kind.SEND: self.send,
            Kind.LEAVE: self.leave,
            Kind.FETCH: self.fetch,
            Kind.ARRIVE: self.arrive,
            Kind.ENCODE: self.encode,
            Kind.DECODE: self.decode,
        }

    def run(self, position: int, instruction: Instruction) -> None:
        op = self.graph.ops[instruction.op]
        for value in op.writes:
            self._take(self.storage_of[value], position)
        self._touch_reads(position, instruction.op)

    def replay(self, position: int, instruction: Instruction) -> None:
        self._touch_reads(position, instruction.op)
        op = self.graph.ops[instruction.op]
        read = {self.storage_of[r.value] for r in op.reads}
        for storage in {self.storage_of[value] for value in op.writes}:
            if storage in instruction.keeps:
                self._take(storage, position)
            elif storage not in read:  # a fresh output that nobody asked for: gone with the instruction
                self._hold(self.device, storage, self.graph.storages[storage].nbytes, position, position)

    def send(self, position: int, instruction: Instruction) -> None:
        self.stored_since[instruction.decision] = position

    def leave(self, position: int, instruction: Instruction) -> None:
        if instruction.decision in self.encoded_since:
            self._free_encoded(position, instruction)
        else:
            self._free(instruction.storage, position)

    def fetch(self, position: int, instruction: Instruction) -> None:
        if isinstance(self.plan.decisions[instruction.decision].action, EncodeOffload):
            self.encoded_since[instruction.decision] = position
        else:
            self._take(instruction.storage, position)

    def arrive(self, position: int, instruction: Instruction) -> None:
        action = self.plan.decisions[instruction.decision].action
        assert isinstance(action, Offload | EncodeOffload), f"{action.kind} does not travel"
        nbytes = action.nbytes if isinstance(action, EncodeOffload) else self.graph.storages[instruction.storage].nbytes
        self._hold(action.tier, instruction.storage, nbytes, self.stored_since.pop(instruction.decision), position)
        if isinstance(action, Offload):
            self.touched[instruction.storage] = position

    def encode(self, position: int, instruction: Instruction) -> None:
        self.encoded_since[instruction.decision] = position
        self._free(instruction.storage, position)

    def decode(self, position: int, instruction: Instruction) -> None:
        self._take(instruction.storage, position)
        self._free_encoded(position, instruction)

    def closed(self, end: int) -> list[Holding]:
        """Every holding, once the program has ended: what is persistent or held stays to the end, the rest to its last
        touch.
        """
        for storage, since in enumerate(self.since):
            if since >= 0:
                last = end if storage in self.to_the_end else self.touched[storage]
                self._hold(self.device, storage, self.graph.storages[storage].nbytes, since, last)
        return self.holdings

    def _expect_inputs(self, program: Sequence[Instruction]) -> None:
        """Inputs are there from the start; tangents from the first instruction of the first backward step, at least
        through it.
        """
        first_backward = min(self.graph.num_forward, len(self.graph) - 1)
        during = [p for p, instruction in enumerate(program) if instruction.step == first_backward]
        served = next(p for p in during if program[p].kind is Kind.RUN)
        inputs = {self.storage_of[value] for value in self.graph.inputs}
        for value in self.graph.tangents:
            self.since[self.storage_of[value]], self.touched[self.storage_of[value]] = during[0], served
        for storage in inputs:
            self.since[storage] = 0
        self.to_the_end = inputs | {self.storage_of[value] for value in self.graph.held}

    def _touch_reads(self, position: int, op: int) -> None:
        for read in self.graph.ops[op].reads:  # reading the shape of something away leaves no trace
            if self.since[self.storage_of[read.value]] >= 0:
                self.touched[self.storage_of[read.value]] = position
        workspace_nbytes = self.costs[op].workspace_nbytes
        if workspace_nbytes:
            self.holdings.append(Holding(self.device, Role.WORKSPACE, workspace_nbytes, position, position))

    def _take(self, storage: int, position: int) -> None:
        if self.since[storage] < 0:
            self.since[storage] = position
        self.touched[storage] = position

    def _free(self, storage: int, position: int) -> None:
        if self.since[storage] >= 0:
            self._hold(self.device, storage, self.graph.storages[storage].nbytes, self.since[storage], position)
            self.since[storage] = -1

    def _free_encoded(self, position: int, instruction: Instruction) -> None:
        action = self.plan.decisions[instruction.decision].action
        assert isinstance(action, Encode | EncodeOffload), f"{action.kind} has no encoded buffer"
        since = self.encoded_since.pop(instruction.decision)
        self._hold(self.device, instruction.storage, action.nbytes, since, position)

    def _hold(self, tier: str, storage: int, nbytes: int, first: int, last: int) -> None:
        self.holdings.append(Holding(tier, self.graph.storages[storage].role, nbytes, first, last, storage))
