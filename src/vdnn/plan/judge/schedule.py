"""A plan, written out as the program that runs it.

Enters: a plan. Leaves: one tuple of instructions in execution order, which the simulator prices and the graph rewriter
turns into code: two readers of one program cannot disagree about what happens when. The one idea: **a decision is a few
positions**, and this file alone says in which order the things that share a position happen.

Around moment t the order is
1. FETCH: bytes are taken and copies back begin, for decisions with `fetch == t`;
2. what must be whole for moment t: REPLAYs in op order, each op once, and ARRIVE / DECODE as late as the replays and
moment
   t allow;
3. RUN of op t;
4. SEND of the storages that nothing writes any more before they leave;
5. LEAVE of what gives up its bytes, then ENCODE (and its SEND), then LEAVE of encoded buffers whose copy out is placed
   here.

What came back only so that something else could be replayed from it, and is to be recomputed again later, leaves right
after the last replay that reads it, before op t runs: recomputing op by op should hold one layer's maps at a time.

LEAVE stands before ENCODE because an encoder holds both forms at once: what can go first should be gone by then.
Without decisions the program is one RUN per op.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from vdnn.ir import NO_USE, Graph, Trait
from vdnn.plan.model.actions import Drop, Encode, EncodeOffload, Offload, Recompute
from vdnn.plan.model.plan_data import PlanData


class Kind(StrEnum):
    RUN = "run"  # op runs for the first time
    REPLAY = "replay"  # op runs again; only the storages in `keeps` stay, its other outputs vanish with the instruction
    SEND = "send"  # the copy out of the storage (or of its encoded buffer) starts
    LEAVE = "leave"  # wait for the copy out, if there is one, then free the storage (or its encoded buffer)
    FETCH = "fetch"  # take the bytes of the storage (or of its encoded buffer) and start the copy back
    ARRIVE = "arrive"  # wait for the copy back
    ENCODE = "encode"  # write the encoded buffer, then free the storage
    DECODE = "decode"  # take the storage's bytes, fill them from the encoded buffer, then free the buffer


@dataclass(frozen=True, slots=True)
class Instruction:
    """`op` is set for RUN and REPLAY, `storage` for all others, `decision` (a position in the plan) for all but RUN;
    else -1.
    """

    kind: Kind
    moment: int
    op: int = -1
    storage: int = -1
    decision: int = -1
    keeps: tuple[int, ...] = ()

    def label(self, graph: Graph) -> str:
        """What a reader of a timeline sees: an op's own name, or a verb and what it is done to."""
        if self.kind is Kind.RUN:
            return graph.ops[self.op].name
        return f"{self.kind} {graph.ops[self.op].name if self.op >= 0 else graph.storages[self.storage].name}"


def schedule(plan: PlanData) -> tuple[Instruction, ...]:
    """The plan as a linear program."""
    agenda = _agenda(plan)
    busy = agenda.moments()
    program: list[Instruction] = []
    for moment in range(len(plan.problem.graph)):
        if moment in busy:
            program += agenda.fetch.get(moment, ())
            at_once = _leaving_at_once(plan, agenda, moment)
            program += _made_whole(plan, agenda, moment, at_once)
        program.append(Instruction(Kind.RUN, moment, moment))
        if moment in busy:
            program += agenda.send.get(moment, ())
            program += [leaving for leaving in agenda.leave.get(moment, ()) if leaving.storage not in at_once]
            program += agenda.encode.get(moment, ())
            program += agenda.sent.get(moment, ())
    return tuple(program)


class _Agenda:
    """What is due around each moment, under one heading per place in the order, there in the order of the plan."""

    def __init__(self) -> None:
        self.fetch: defaultdict[int, list[Instruction]] = defaultdict(list)
        self.whole: defaultdict[int, dict[int, list[Instruction]]] = defaultdict(
            dict
        )  # moment -> storage -> how it returns
        self.replay: defaultdict[int, dict[int, list[int]]] = defaultdict(
            dict
        )  # moment -> op -> decisions that ask for it
        self.send: defaultdict[int, list[Instruction]] = defaultdict(list)
        self.leave: defaultdict[int, list[Instruction]] = defaultdict(list)
        self.encode: defaultdict[int, list[Instruction]] = defaultdict(list)
        self.sent: defaultdict[int, list[Instruction]] = defaultdict(list)

    def moments(self) -> set[int]:
        """Every moment around which more than its op happens."""
        return set().union(self.fetch, self.whole, self.replay, self.send, self.leave, self.encode, self.sent)


def _agenda(plan: PlanData) -> _Agenda:
    agenda = _Agenda()
    writers = _writers(plan)
    begins = _residency_begins(plan)
    for position, decision in enumerate(plan.decisions):
        storage = decision.storage

        def due(kind: Kind, moment: int, storage: int = storage, position: int = position) -> Instruction:
            return Instruction(kind, moment, storage=storage, decision=position)

        match decision.action:
            case Drop(leave):
                agenda.leave[leave].append(due(Kind.LEAVE, leave))
            case Recompute(leave, back):
                agenda.leave[leave].append(due(Kind.LEAVE, leave))
                for op in (moment for moment, _ in writers[storage] if moment <= leave):
                    agenda.replay[back].setdefault(op, []).append(position)
            case Offload(_, leave, fetch, back):
                written = [moment for moment, is_content in writers[storage] if is_content and moment <= leave]
                final = max([begins[position], *written[-1:]])
                agenda.send[final].append(due(Kind.SEND, final))
                agenda.leave[leave].append(due(Kind.LEAVE, leave))
                agenda.fetch[fetch].append(due(Kind.FETCH, fetch))
                agenda.whole[back][storage] = [due(Kind.ARRIVE, back)]
            case Encode(leave=leave, back=back, direct=direct):
                agenda.encode[leave].append(due(Kind.ENCODE, leave))
                agenda.whole[back][storage] = [] if direct else [due(Kind.DECODE, back)]
            case EncodeOffload(leave=leave, sent=sent, fetch=fetch, back=back, direct=direct):
                agenda.encode[leave] += due(Kind.ENCODE, leave), due(Kind.SEND, leave)
                agenda.sent[sent].append(due(Kind.LEAVE, sent))
                agenda.fetch[fetch].append(due(Kind.FETCH, fetch))
                decoded = [] if direct else [due(Kind.DECODE, back)]
                agenda.whole[back][storage] = [due(Kind.ARRIVE, back), *decoded]
    return agenda


def _residency_begins(plan: PlanData) -> dict[int, int]:
    """Of each decision: where the residency that it ends began, which is where the storage's gap before it ended."""
    begins: dict[int, int] = {}
    back: dict[int, int] = {}
    for position in sorted(range(len(plan.decisions)), key=lambda p: getattr(plan.decisions[p].action, "leave", -1)):
        storage = plan.decisions[position].storage
        begins[position] = back.get(storage, 0)
        back[storage] = getattr(plan.decisions[position].action, "back", 0)
    return begins


def _writers(plan: PlanData) -> dict[int, list[tuple[int, bool]]]:
    """Of each storage with a decision: the ops that write values of it, and whether the content changes (a view
    leaves it).
    """
    graph = plan.problem.graph
    writers: dict[int, list[tuple[int, bool]]] = {decision.storage: [] for decision in plan.decisions}
    if not writers:
        return writers
    for moment, op in enumerate(graph.ops):
        for storage in {graph.values[value].storage for value in op.writes}:
            if storage in writers:
                writers[storage].append((moment, Trait.VIEW not in op.traits))
    return writers


def _leaving_at_once(plan: PlanData, agenda: _Agenda, moment: int) -> dict[int, tuple[int, Instruction]]:
    """Storage -> the last replay of this moment that touches it, and its LEAVE: of what is replayed here, not used by
    the moment itself, and to be replayed again later.
    """
    graph, replays = plan.problem.graph, agenda.replay.get(moment, {})
    leaving = {i.storage: i for i in agenda.leave.get(moment, ()) if _costs_no_copy(plan, i)} if replays else {}
    for read in graph.ops[moment].reads:
        if read.need not in NO_USE:
            leaving.pop(graph.values[read.value].storage, None)
    replayed = {plan.decisions[position].storage for asked in replays.values() for position in asked}
    last: dict[int, tuple[int, Instruction]] = {}
    for op in sorted(replays):
        reads, writes = graph.replayed(op)
        for storage in {graph.values[value].storage for value in (*(read.value for read in reads), *writes)}:
            if storage in leaving and storage in replayed:
                last[storage] = (op, leaving[storage])
    return last


def _costs_no_copy(plan: PlanData, leaving: Instruction) -> bool:
    return isinstance(plan.decisions[leaving.decision].action, Recompute | Drop)


def _made_whole(
    plan: PlanData, agenda: _Agenda, moment: int, at_once: dict[int, tuple[int, Instruction]]
) -> Iterator[Instruction]:
    """Replays in op order. What comes back by copy or decoder does so right before its first reader, or last."""
    graph = plan.problem.graph
    coming = dict(agenda.whole.get(moment, {}))
    for op, asked in sorted(agenda.replay.get(moment, {}).items()):
        for read in graph.ops[op].reads:
            yield from coming.pop(graph.values[read.value].storage, ())
        keeps = tuple(plan.decisions[position].storage for position in asked)
        yield Instruction(Kind.REPLAY, moment, op=op, decision=asked[0], keeps=keeps)
        yield from (leaving for last, leaving in at_once.values() if last == op)
    for instructions in coming.values():
        yield from instructions
