"""What timed steps show of a plan's prices.

Enters: a plan, and how long each instruction of its timed steps took. Leaves: factors by which ops and codecs are
slower than the plan believes. The one idea: compare an instruction with itself. The simulator says how long it would
last at the prices that were believed, beside the copies that run meanwhile; what it lasted in the step, over that, is
the factor by which its price is wrong, and what copies cost the ops beside them does not come into it twice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from vdnn.cost.table import CostTable, OpCost
from vdnn.hardware.device import CodecSpeed, Hardware
from vdnn.plan.judge.schedule import Kind
from vdnn.plan.model.actions import Encode, EncodeOffload
from vdnn.plan.model.timeline import COMPUTE
from vdnn.plan.plan import Plan

SEEN = "seen in steps"
"""The source of a cost that training steps have shown."""

Timed = Mapping[int, float]
"""Seconds of a step's instructions, by position."""

CodecCall = tuple[str, Kind]
Name = TypeVar("Name")


@dataclass(frozen=True)
class StepTimes:
    """`factors` by key of an op's call, `codec_factors` by codec and direction: seen over believed. `step_s` is what
    the whole step took, `is_off_by` the sum of all differences over what was believed."""

    factors: Mapping[str, float]
    codec_factors: Mapping[CodecCall, float]
    step_s: float
    is_off_by: float


def step_times(plan: Plan, keys: Sequence[str], timed: Sequence[Timed]) -> StepTimes:
    """Of several steps the shortest time of each instruction counts: what disturbs a step only ever lengthens it."""
    believed_s = _believed_s(plan)
    of_ops: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    of_codecs: dict[CodecCall, list[float]] = defaultdict(lambda: [0.0, 0.0])
    off_s = 0.0
    for position, instruction in enumerate(plan.program):
        seen_s = [step[position] for step in timed if position in step]
        if not seen_s or position not in believed_s:
            continue
        pair = (min(seen_s), believed_s[position])
        off_s += abs(pair[0] - pair[1])
        if instruction.op >= 0:
            _add(of_ops[keys[instruction.op]], pair)
        elif instruction.kind in (Kind.ENCODE, Kind.DECODE):
            action = plan.decisions[instruction.decision].action
            assert isinstance(action, Encode | EncodeOffload), f"{action} encodes nothing"
            _add(of_codecs[action.codec, instruction.kind], pair)
    step_s = min((sum(step.values()) for step in timed), default=0.0)
    return StepTimes(_factors(of_ops), _factors(of_codecs), step_s, off_s / max(sum(believed_s.values()), 1e-9))


def with_factors(costs: CostTable, keys: Sequence[str], factors: Mapping[str, float]) -> CostTable:
    return CostTable(tuple(scaled(cost, factors.get(key)) for cost, key in zip(costs.ops, keys, strict=True)))


def scaled(cost: OpCost, factor: float | None) -> OpCost:
    return cost if factor is None else replace(cost, seconds=cost.seconds * factor, source=SEEN)


def with_codec_factors(hardware: Hardware, factors: Mapping[CodecCall, float]) -> Hardware:
    return replace(hardware, codecs=tuple(_slower(codec, factors) for codec in hardware.codecs))


def _slower(codec: CodecSpeed, factors: Mapping[CodecCall, float]) -> CodecSpeed:
    encode, decode = (factors.get((codec.name, kind), 1.0) for kind in (Kind.ENCODE, Kind.DECODE))
    return replace(
        codec,
        encode_bytes_per_s=codec.encode_bytes_per_s / encode,
        decode_bytes_per_s=codec.decode_bytes_per_s / decode,
        encode_call_s=codec.encode_call_s * encode,
        decode_call_s=codec.decode_call_s * decode,
    )


def _believed_s(plan: Plan) -> dict[int, float]:
    """What the simulator gives every instruction that computes."""
    lane = plan.timeline.lanes[COMPUTE]
    seconds = np.asarray(lane.end_s) - np.asarray(lane.begin_s)
    return {int(position): float(s) for position, s in zip(lane.instructions, seconds, strict=True) if s > 0}


def _add(sums: list[float], pair: tuple[float, float]) -> None:
    sums[0] += pair[0]
    sums[1] += pair[1]


def _factors(sums: Mapping[Name, Sequence[float]]) -> dict[Name, float]:
    return {name: seen / believed for name, (seen, believed) in sums.items() if seen > 0 and believed > 0}
