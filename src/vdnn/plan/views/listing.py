"""The plan as an annotated program, storage by storage: what golden tests compare.

Enters: a plan. Leaves: text with a header and one line per thing an op makes: where it stands in the model, what it is,
its size, what happens to it and why. The op that reaches the peak is marked. The reasons are the decisions' own;
nothing is made up here. `explained.py` tells the same plan instruction by instruction.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from vdnn.ir import Graph, Op, Trait
from vdnn.plan.model.actions import Action, Decision, Drop, Encode, EncodeOffload, Keep, Offload, Recompute
from vdnn.plan.plan import Plan
from vdnn.units import format_nbytes


class _ListedOp(NamedTuple):
    moment: int
    module: str
    made: str
    size: str
    action: str
    reason: str


def listing(plan: Plan) -> str:
    """The whole program, one line per storage an op makes (or per op that makes none)."""
    lines = list(_lines(plan))
    widths = [max((len(line[column]) for line in lines), default=0) for column in range(1, 5)]  # type: ignore[arg-type]
    peak_moment = int(plan.timeline.moments[plan.timeline.peak_at]) if lines else -1
    text = [f"# {line}" for line in str(plan).splitlines()]
    phase = None
    for position, line in enumerate(lines):
        if plan.problem.graph.ops[line.moment].phase is not phase:
            phase = plan.problem.graph.ops[line.moment].phase
            text.append(f"{phase}:")
        is_last_of_peak = line.moment == peak_moment and (
            position + 1 == len(lines) or lines[position + 1].moment != peak_moment
        )
        text.append(_rendered(line, widths, f"<-- peak {format_nbytes(plan.peak_nbytes)}" if is_last_of_peak else ""))
    return "\n".join(text) + "\n"


def _rendered(line: _ListedOp, widths: list[int], mark: str) -> str:
    module, made, size, action = widths
    reason = f"# {line.reason}" if line.reason else ""
    left = f"{line.moment:>6}  {line.module:<{module}}  {line.made:<{made}}"
    row = f"{left}  {line.size:>{size}}  {line.action:<{action}}  {reason}"
    return f"{row.rstrip()}  {mark}".rstrip()


def _lines(plan: Plan) -> Iterator[_ListedOp]:
    graph = plan.problem.graph
    decided: dict[int, list[Decision]] = {}
    for decision in plan.decisions:
        decided.setdefault(decision.storage, []).append(decision)
    stashed = set(graph.stashed)
    exists = {graph.values[value].storage for value in (*graph.inputs, *graph.tangents)}
    for moment, op in enumerate(graph.ops):
        call = f"{op.target}({', '.join(graph.values[read.value].name for read in op.reads)})"
        born = dict.fromkeys(graph.values[value].storage for value in op.writes)
        fresh = [storage for storage in born if storage not in exists]
        exists.update(fresh)
        for storage in fresh:
            decisions = decided.get(storage, [])
            action = "; ".join(_action(d.action) for d in decisions) or ("keep" if storage in stashed else "")
            reason = "; ".join(dict.fromkeys(d.reason for d in decisions if d.reason))
            block = graph.storages[storage]
            yield _ListedOp(moment, op.module, f"{block.name} = {call}", format_nbytes(block.nbytes), action, reason)
        if not fresh:
            yield _ListedOp(moment, op.module, _without_new_storage(graph, op, call), "", "", "")


def _without_new_storage(graph: Graph, op: Op, call: str) -> str:
    if not op.writes:
        return call
    how = "view of" if op.has(Trait.VIEW) else "into"
    names = ", ".join(graph.values[value].name for value in op.writes)
    targets = dict.fromkeys(graph.storages[graph.values[value].storage].name for value in op.writes)
    return f"{names} = {call} {how} {', '.join(targets)}"


def _action(action: Action) -> str:
    """The action with its positions: `offload host 2..7` leaves after moment 2 and is whole before moment 7."""
    match action:
        case Keep():
            return "keep"
        case Drop(leave):
            return f"drop {leave}.."
        case Recompute(leave, back):
            return f"recompute {leave}..{back}"
        case Offload(tier, leave, fetch, back):
            return f"offload {tier} {leave}..{fetch}>{back}"
        case Encode(codec, nbytes, leave, back, direct=direct):
            return f"encode {codec} {format_nbytes(nbytes)} {leave}..{'read as it is' if direct else back}"
        case EncodeOffload(codec, nbytes, tier, leave, sent, fetch, back, direct=direct):
            until = f"{back}, read as it is" if direct else back
            return f"encode {codec} {format_nbytes(nbytes)}, offload {tier} {leave}>{sent}..{fetch}>{until}"
