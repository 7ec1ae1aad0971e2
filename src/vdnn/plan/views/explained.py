"""A plan told instruction by instruction: what happens, how many bytes are on the device then, and why.

Enters: a plan. Leaves: `ExplainedInstruction`s in execution order, for `vdnn explain` and its JSON. The one idea: the
program says what happens, the simulator what is there, the decisions why; nothing is made up here. `listing.py` tells
the same plan storage by storage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from vdnn.plan.judge.schedule import Instruction, Kind
from vdnn.plan.model.actions import Drop, Encode, EncodeOffload, Offload, Recompute
from vdnn.plan.plan import Plan
from vdnn.plan.views.plan_figures import carried_nbytes
from vdnn.units import format_nbytes

BOOKKEEPING = frozenset({Kind.SEND, Kind.ARRIVE})
"""Instructions whose bytes were taken or are freed by another one: told only where everything is."""


@dataclass(frozen=True, slots=True)
class ExplainedInstruction:
    """One instruction. `nbytes` is the size of what it is about, `device_nbytes` all that is on the device while it
    runs. `reason` stands where a storage leaves, and is empty elsewhere."""

    moment: int
    phase: str
    kind: str
    what: str
    module: str
    nbytes: int
    device_nbytes: int
    reason: str
    is_peak: bool


def explained(plan: Plan) -> tuple[ExplainedInstruction, ...]:
    """Every instruction of the plan."""
    total = plan.timeline.total().tolist()
    at = plan.timeline.peak_at
    tell = _Teller(plan)
    return tuple(
        tell.line(instruction, total[position], position == at) for position, instruction in enumerate(plan.program)
    )


def eventful(lines: Iterable[ExplainedInstruction]) -> Iterator[ExplainedInstruction]:
    """Only where something happens to a storage, and the peak."""
    return (line for line in lines if line.is_peak or line.kind not in (Kind.RUN, *BOOKKEEPING))


class _Teller:
    def __init__(self, plan: Plan) -> None:
        self.plan, self.graph = plan, plan.problem.graph
        self.modules: dict[int, str] = {}
        for op in self.graph.ops:
            for value in op.writes:
                self.modules.setdefault(self.graph.values[value].storage, op.module)
        self.words: dict[Kind, Callable[[Instruction], str]] = {
            Kind.RUN: self._run,
            Kind.REPLAY: self._replay,
            Kind.SEND: self._send,
            Kind.LEAVE: self._leave,
            Kind.FETCH: self._fetch,
            Kind.ARRIVE: self._arrive,
            Kind.ENCODE: self._encode,
            Kind.DECODE: self._decode,
        }

    def line(self, instruction: Instruction, device_nbytes: int, is_peak: bool) -> ExplainedInstruction:
        has_op = instruction.op >= 0
        return ExplainedInstruction(
            moment=instruction.moment,
            phase=str(self.graph.ops[instruction.moment].phase),
            kind=str(instruction.kind),
            what=self.words[instruction.kind](instruction),
            module=self.graph.ops[instruction.op].module if has_op else self.modules.get(instruction.storage, ""),
            nbytes=self._made_nbytes(instruction) if has_op else self._nbytes(instruction),
            device_nbytes=device_nbytes,
            reason=self._reason(instruction),
            is_peak=is_peak,
        )

    def _reason(self, instruction: Instruction) -> str:
        """Where a storage gives up its bytes; for an encoding that leaves later, where it was written."""
        if instruction.kind not in (Kind.LEAVE, Kind.ENCODE) or self._is_encoding(instruction):
            return ""
        return self.plan.decisions[instruction.decision].reason

    def _is_encoding(self, instruction: Instruction) -> bool:
        is_encoded = isinstance(self.plan.decisions[instruction.decision].action, EncodeOffload)
        return is_encoded and instruction.kind is not Kind.ENCODE

    def _nbytes(self, instruction: Instruction) -> int:
        if self._is_encoding(instruction) and instruction.kind is not Kind.DECODE:
            return carried_nbytes(self.plan, instruction.decision)
        return self.graph.storages[instruction.storage].nbytes

    def _made_nbytes(self, instruction: Instruction) -> int:
        """What an op makes: the storages that begin with it."""
        if instruction.kind is Kind.REPLAY:
            return sum(self.graph.storages[storage].nbytes for storage in set(instruction.keeps))
        made = {self.graph.values[value].storage for value in self.graph.ops[instruction.op].writes}
        return sum(self.graph.storages[s].nbytes for s in made if self._begins_at(s) == instruction.op)

    def _begins_at(self, storage: int) -> int:
        lifetime = self.graph.lifetimes[storage]
        return -1 if lifetime is None else lifetime.begin

    def _run(self, instruction: Instruction) -> str:
        op = self.graph.ops[instruction.op]
        variant = self.plan.costs[instruction.op].variant
        return f"{op.name} = {op.target}" + (f" as {variant}" if variant else "")

    def _replay(self, instruction: Instruction) -> str:
        kept = ", ".join(self.graph.storages[storage].name for storage in dict.fromkeys(instruction.keeps))
        return f"runs {self.graph.ops[instruction.op].name} again for {kept}"

    def _send(self, instruction: Instruction) -> str:
        return f"copy of {self._name(instruction)} to {self._tier(instruction)} begins"

    def _leave(self, instruction: Instruction) -> str:
        match self.plan.decisions[instruction.decision].action:
            case Offload(tier=tier, back=back):
                return f"{self._name(instruction)} leaves for {tier}, back for op {back}"
            case EncodeOffload(tier=tier, back=back):
                return f"encoding of {self._name(instruction)} leaves for {tier}, back for op {back}"
            case Recompute(back=back):
                return f"{self._name(instruction)} is dropped, made again for op {back}"
            case Drop():
                return f"{self._name(instruction)} is dropped for good"
            case action:
                raise AssertionError(f"{action.kind} does not leave")

    def _fetch(self, instruction: Instruction) -> str:
        back = getattr(self.plan.decisions[instruction.decision].action, "back", instruction.moment)
        return f"{self._name(instruction)} returns from {self._tier(instruction)} for op {back}"

    def _arrive(self, instruction: Instruction) -> str:
        return f"{self._name(instruction)} is back"

    def _encode(self, instruction: Instruction) -> str:
        action = self.plan.decisions[instruction.decision].action
        assert isinstance(action, Encode | EncodeOffload), f"{action.kind} has no codec"
        until = f"read as it is from op {action.back}" if action.direct else f"decoded for op {action.back}"
        return f"{self._name(instruction)} becomes {format_nbytes(action.nbytes)} of {action.codec}, {until}"

    def _decode(self, instruction: Instruction) -> str:
        return f"{self._name(instruction)} is decoded"

    def _name(self, instruction: Instruction) -> str:
        return self.graph.storages[instruction.storage].name

    def _tier(self, instruction: Instruction) -> str:
        action = self.plan.decisions[instruction.decision].action
        assert isinstance(action, Offload | EncodeOffload), f"{action.kind} does not travel"
        return action.tier
