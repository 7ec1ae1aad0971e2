"""Who holds bytes where, from which instruction to which.

Enters: a plan and its program. Leaves: `Holdings`: rows of so many bytes in a tier over a run of instructions; whoever
wants a peak adds them up, whoever wants to know what fills it sorts them. The one idea is SuperNeurons' liveness
analysis (PPoPP 2018) over the program instead of over the graph: a storage lives from the instruction that makes it
whole to the last one that touches it before it leaves, so a copy out, a decoder or a replay is a touch like any other.

Bytes that pass through a tier on the way to a slower one are not held there: transfers run in small pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vdnn.codecs import Codec, codec_for
from vdnn.ir import NO_USE, Read, Role
from vdnn.plan.judge.schedule import Instruction, Kind
from vdnn.plan.model.actions import Encode, EncodeOffload, Offload
from vdnn.plan.model.plan_data import PlanData
from vdnn.plan.model.timeline import ROW_OF_ROLE

Column = npt.NDArray[np.int64]

_WORKSPACE = ROW_OF_ROLE[Role.WORKSPACE]
_DEVICE = 0  # the device is the first tier


@dataclass(frozen=True, slots=True)
class Holdings:
    """Row k: `nbytes[k]` are held from instruction `first[k]` to `last[k]`, both included.

    `tiers` are positions among the hardware's tiers, `roles` in `ROLES`, `storages` in the graph (-1: workspace).
    """

    tiers: Column
    roles: Column
    nbytes: Column
    first: Column
    last: Column
    storages: Column


def holdings(plan: PlanData, program: Sequence[Instruction]) -> Holdings:
    """Everything that holds bytes in any tier while the program runs."""
    book = _Book(plan)
    if program:
        book.expect_inputs(program)
        enter = book.entries()
        for position, instruction in enumerate(program):
            enter[instruction.kind](position, instruction)
        book.close(len(program) - 1)
    return Holdings(*np.array(book.numbers, dtype=np.int64).reshape(-1, 6).T)


class _Book:
    """Open entries per storage: `since` is the instruction at which its bytes were taken, or -1 while it holds none."""

    def __init__(self, plan: PlanData) -> None:
        graph = plan.problem.graph
        self.plan, self.graph, self.costs = plan, graph, plan.costs
        self.codecs_take_room = plan.problem.codecs_take_room
        self.tiers = {tier.name: position for position, tier in enumerate(plan.problem.hardware.tiers)}
        self.storage_of = [value.storage for value in graph.values]
        self.since = [-1] * len(graph.storages)
        self.touched = [-1] * len(graph.storages)
        self.encoded_since: dict[int, int] = {}
        self.encoding_of: dict[int, int] = {}  # storage -> the decision whose encoding its readers take as it is
        self.encoding_touched: dict[int, int] = {}
        self.stored_since: dict[int, int] = {}
        self.numbers: list[int] = []  # six per holding: a hundred thousand small tuples would keep the collector busy

    def expect_inputs(self, program: Sequence[Instruction]) -> None:
        """Inputs are there from the start; tangents from the first instruction of the first backward op, at least
        through it.
        """
        first_backward = min(self.graph.num_forward, len(self.graph) - 1)
        during = [p for p, instruction in enumerate(program) if instruction.moment == first_backward]
        served = next(p for p in during if program[p].kind is Kind.RUN)
        inputs = {self.storage_of[value] for value in self.graph.inputs}
        for value in self.graph.tangents:
            self.since[self.storage_of[value]], self.touched[self.storage_of[value]] = during[0], served
        for storage in inputs:
            self.since[storage] = 0
        self.to_the_end = inputs | {self.storage_of[value] for value in self.graph.held}

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
        self._touch(position, instruction.op, op.reads)

    def replay(self, position: int, instruction: Instruction) -> None:
        reads, writes = self.graph.replayed(instruction.op)
        self._touch(position, instruction.op, reads)
        read = {self.storage_of[r.value] for r in reads}
        for storage in {self.storage_of[value] for value in writes}:
            if storage in instruction.keeps:
                self._take(storage, position)
            elif storage not in read:  # a fresh output that nobody asked for: gone with the instruction
                self._hold(_DEVICE, storage, self.graph.storages[storage].nbytes, position, position)

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
            self._read_encoding(position, instruction)
        else:
            self._take(instruction.storage, position)

    def arrive(self, position: int, instruction: Instruction) -> None:
        action = self.plan.decisions[instruction.decision].action
        assert isinstance(action, Offload | EncodeOffload), f"{action.kind} does not travel"
        nbytes = action.nbytes if isinstance(action, EncodeOffload) else self.graph.storages[instruction.storage].nbytes
        self._hold(
            self.tiers[action.tier], instruction.storage, nbytes, self.stored_since.pop(instruction.decision), position
        )
        if isinstance(action, Offload):
            self.touched[instruction.storage] = position
        else:
            self._read_encoding(position, instruction)

    def encode(self, position: int, instruction: Instruction) -> None:
        self._work_of_codec(position, instruction.decision)
        self.encoded_since[instruction.decision] = position
        self._free(instruction.storage, position)
        self._read_encoding(position, instruction)

    def decode(self, position: int, instruction: Instruction) -> None:
        self._work_of_codec(position, instruction.decision)
        self._take(instruction.storage, position)
        self._free_encoded(position, instruction)

    def close(self, end: int) -> None:
        """The program has ended: what is persistent or held stayed to the end, the rest to its last touch."""
        for storage, decision in self.encoding_of.items():
            if decision in self.encoded_since:  # an encoding that was read as it is
                self._hold_encoding(decision, storage, self.encoding_touched[decision])
        for storage, since in enumerate(self.since):
            if since >= 0:
                last = end if storage in self.to_the_end else self.touched[storage]
                self._hold(_DEVICE, storage, self.graph.storages[storage].nbytes, since, last)

    def _touch(self, position: int, op: int, reads: Sequence[Read]) -> None:
        workspace_nbytes = self.costs[op].workspace_nbytes
        for read in reads:  # reading the shape of something away leaves no trace
            storage = self.storage_of[read.value]
            if self.since[storage] >= 0:
                self.touched[storage] = position
            elif storage in self.encoding_of and read.need not in NO_USE:
                decision = self.encoding_of[storage]
                self.encoding_touched[decision] = position
                if self.codecs_take_room:
                    workspace_nbytes = max(workspace_nbytes, self._codec_of(decision).reader_workspace_nbytes)
        self._work(position, workspace_nbytes)

    def _work_of_codec(self, position: int, decision: int) -> None:
        if self.codecs_take_room:
            self._work(position, self._codec_of(decision).workspace_nbytes)

    def _work(self, position: int, workspace_nbytes: int) -> None:
        if workspace_nbytes:
            self.numbers += _DEVICE, _WORKSPACE, workspace_nbytes, position, position, -1

    def _codec_of(self, position: int) -> Codec:
        decision = self.plan.decisions[position]
        assert isinstance(decision.action, Encode | EncodeOffload), f"{decision.action.kind} has no codec"
        return codec_for(decision.action.codec, self.graph.storages[decision.storage], decision.action.detail)

    def _take(self, storage: int, position: int) -> None:
        if self.since[storage] < 0:
            self.since[storage] = position
        self.touched[storage] = position

    def _free(self, storage: int, position: int) -> None:
        if self.since[storage] >= 0:
            self._hold(_DEVICE, storage, self.graph.storages[storage].nbytes, self.since[storage], position)
            self.since[storage] = -1

    def _read_encoding(self, position: int, instruction: Instruction) -> None:
        """The encoding is touched; from here on its readers take it, if the plan wants no decoder."""
        action = self.plan.decisions[instruction.decision].action
        if isinstance(action, Encode | EncodeOffload) and action.direct:
            self.encoding_of[instruction.storage] = instruction.decision
            self.encoding_touched[instruction.decision] = position

    def _free_encoded(self, position: int, instruction: Instruction) -> None:
        self._hold_encoding(instruction.decision, instruction.storage, position)

    def _hold_encoding(self, decision: int, storage: int, last: int) -> None:
        action = self.plan.decisions[decision].action
        assert isinstance(action, Encode | EncodeOffload), f"{action.kind} has no encoded buffer"
        self._hold(_DEVICE, storage, action.nbytes, self.encoded_since.pop(decision), last)

    def _hold(self, tier: int, storage: int, nbytes: int, first: int, last: int) -> None:
        self.numbers += tier, ROW_OF_ROLE[self.graph.storages[storage].role], nbytes, first, last, storage
