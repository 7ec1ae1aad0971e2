"""Which buffers of encodings may stay allocated while no encoding is in them.

Enters: a plan. Leaves: the decisions whose buffer can outlive its encoding without the step ever holding more than the
plan's peak. Fresh memory on a CPU costs a page fault per 4 KiB, four times what encoding itself costs, so buffers that
are large are worth keeping from one step to the next; but idle memory is memory. The one idea: a plan leaves room at
most of its instructions, and a buffer fits into that room if it does so at every instruction at which it is idle.
Largest first, each taking its room.
"""

from __future__ import annotations

from vdnn.ir import NO_USE
from vdnn.plan.judge.schedule import Instruction, Kind
from vdnn.plan.model.actions import Encode, EncodeOffload
from vdnn.plan.plan import Plan

MIN_POOLED_NBYTES = 1 << 20
"""Smaller buffers come from malloc's own heap, which does not return them to the system each time."""

MAX_BUFFERS = 1000
"""How many are looked at, largest first: each costs a look at every instruction."""


def lasting_buffers(plan: Plan) -> frozenset[int]:
    """Decisions, by position, whose buffer may be kept when its encoding is gone."""
    program = plan.program
    candidates = {
        position: decision.action.nbytes
        for position, decision in enumerate(plan.decisions)
        if isinstance(decision.action, Encode | EncodeOffload) and decision.action.nbytes >= MIN_POOLED_NBYTES
    }
    if not candidates:
        return frozenset()
    room = plan.peak_nbytes - plan.timeline.total()
    busy = _busy(plan, program)
    lasting: set[int] = set()
    for position in sorted(candidates, key=candidates.__getitem__, reverse=True)[:MAX_BUFFERS]:
        first, last = busy[position]
        idle = [room[:first], room[last + 1 :]]
        if all(part.min(initial=candidates[position]) >= candidates[position] for part in idle):
            for part in idle:
                part -= candidates[position]
            lasting.add(position)
    return frozenset(lasting)


def _busy(plan: Plan, program: tuple[Instruction, ...]) -> dict[int, tuple[int, int]]:
    """Of each decision with an encoding: the instructions at which its buffer is filled and at which it is last needed.
    An encoding that travels has left its buffer for good: it comes back into other memory.
    """
    graph = plan.problem.graph
    busy: dict[int, tuple[int, int]] = {}
    read_as_encoding = {
        d.storage: p for p, d in enumerate(plan.decisions) if isinstance(d.action, Encode) and d.action.direct
    }
    for at, instruction in enumerate(program):
        if instruction.kind is Kind.RUN and read_as_encoding:
            for read in graph.ops[instruction.op].reads:
                decision = read_as_encoding.get(graph.values[read.value].storage, -1)
                if decision in busy and read.need not in NO_USE:
                    busy[decision] = (busy[decision][0], at)
        elif instruction.kind is Kind.ENCODE:
            busy[instruction.decision] = (at, at)
        elif instruction.decision in busy and instruction.kind is _last_use(plan, instruction.decision):
            busy[instruction.decision] = (busy[instruction.decision][0], at)
    return busy


def _last_use(plan: Plan, decision: int) -> Kind:
    return Kind.DECODE if isinstance(plan.decisions[decision].action, Encode) else Kind.LEAVE
