"""What a walk through a plan leaves behind, and the peak read from it. Part of `validate.py`, apart from the simulator.

Enters: events in order, each with what must be on the device during it. Leaves: the most bytes of any event. The one
idea: liveness analysis backwards. From the end, a storage is alive from the last event that touches it up to the one
at which it begins; the simulator comes to the same number forwards.
"""

from __future__ import annotations

from dataclasses import dataclass

from vdnn.codecs import Codec, codec_for
from vdnn.plan.model.actions import Encode, EncodeOffload
from vdnn.plan.model.plan_data import PlanData

Key = tuple[str, int]
"""("plain", storage) or ("encoded", decision): what can hold bytes on the device."""


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happens: what must be on the device, what of that begins here, and bytes that exist only now."""

    moment: int
    touches: tuple[Key, ...]
    begins: tuple[Key, ...] = ()
    passing_nbytes: int = 0


def peak(plan: PlanData, events: list[Event]) -> tuple[int, int]:
    """The most bytes of any event, and its moment."""
    graph = plan.problem.graph
    alive: set[Key] = {("plain", graph.values[value].storage) for value in (*graph.inputs, *graph.held)}
    total = sum(key_nbytes(plan, key) for key in alive)
    most = (0, 0)
    for event in reversed(events):
        arriving = {*event.touches, *event.begins} - alive
        alive |= arriving
        total += sum(key_nbytes(plan, key) for key in arriving)
        if total + event.passing_nbytes >= most[0]:  # of equals, the earliest
            most = (total + event.passing_nbytes, event.moment)
        for key in event.begins:
            alive.remove(key)
            total -= key_nbytes(plan, key)
    return most


def key_nbytes(plan: PlanData, key: Key) -> int:
    kind, position = key
    if kind == "plain":
        return plan.problem.graph.storages[position].nbytes
    action = plan.decisions[position].action
    assert isinstance(action, Encode | EncodeOffload), f"{action.kind} has no encoded form"
    return action.nbytes


def codec_nbytes(plan: PlanData, position: int) -> int:
    """What the codec of a decision holds for itself while it encodes or decodes."""
    return _codec(plan, position).workspace_nbytes if plan.problem.codecs_take_room else 0


def reader_nbytes(plan: PlanData, encoding: Key) -> int:
    """The same while an op reads the encoding as it is."""
    return _codec(plan, encoding[1]).reader_workspace_nbytes if plan.problem.codecs_take_room else 0


def _codec(plan: PlanData, position: int) -> Codec:
    decision = plan.decisions[position]
    assert isinstance(decision.action, Encode | EncodeOffload), f"{decision.action.kind} has no encoded form"
    return codec_for(decision.action.codec, plan.problem.graph.storages[decision.storage], decision.action.detail)
