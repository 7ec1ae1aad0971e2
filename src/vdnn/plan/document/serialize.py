"""A plan as JSON, and back, without losing a bit.

Enters: a plan, or a file that claims to hold one. Leaves: a dict of plain JSON types, a path, or an equal plan. A plan
carries its whole problem, so a file can be mailed to a colleague and re-checked there; `graph_json.py` writes its
largest part, the graph. The versions of vdnn and torch that made the plan are in the file too.

A file of another schema or version, or with a field that holds something else than it should, raises `InvalidFile`
with the name of the field; nothing is guessed, and nothing that is read is larger or deeper than a plan can be.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

from vdnn.cost.table import CostTable, OpCost
from vdnn.errors import InvalidFile
from vdnn.hardware.device import CodecSpeed, Hardware, Link, Tier
from vdnn.plan.document.graph_json import Json, Word, Words, graph_from_json, graph_kind, graph_to_json, table
from vdnn.plan.document.versions import made_with
from vdnn.plan.model.actions import ACTIONS, Action, Decision
from vdnn.plan.model.plan_data import PlanData
from vdnn.plan.model.problem import DENSITY, Problem
from vdnn.reading.bounded_json import PLAN_NBYTES, json_in
from vdnn.reading.fields import (
    LARGEST_WHOLE,
    ByName,
    Listed,
    Made,
    Maybe,
    Number,
    OneOf,
    Record,
    Row,
    Table,
    Text,
    Truth,
    Whole,
    blamed,
    brief,
    of,
    row_of,
    unfit,
)

SCHEMA = "vdnn.plan"
VERSION = 1
COST_COLUMNS = ("seconds", "workspace_nbytes", "source")


def to_json(plan: PlanData) -> Json:
    """The plan with its problem, in JSON's own types."""
    words = Words()
    body: Json = {
        "made_with": dict(plan.made_with or made_with()),
        "strategy": plan.strategy,
        "budget_nbytes": plan.problem.budget_nbytes,
        "decisions": [decision_to_json(decision) for decision in plan.decisions],
        "hardware": hardware_to_json(plan.problem.hardware),
        "graph": graph_to_json(plan.problem.graph, words),
        "costs": table(
            COST_COLUMNS,
            ([cost.seconds, cost.workspace_nbytes, words.number(cost.source)] for cost in plan.problem.costs.ops),
        ),
    }
    # Written only where there are some: a plan without them is the document it was before they existed.
    if plan.problem.variants:
        body["offered_variants"] = [
            [moment, [_cost_to_json(cost, words) for cost in offered]]
            for moment, offered in plan.problem.variants.items()
        ]
    if plan.variants:
        body["variants"] = [[moment, chosen] for moment, chosen in plan.variants.items()]
    if plan.problem.lossy is not None:
        body["lossy"] = plan.problem.lossy
    if plan.problem.density != DENSITY:
        body["density"] = plan.problem.density
    if plan.problem.form:
        body["form"] = plan.problem.form
    if plan.problem.codecs_take_room:
        body["codecs_take_room"] = True
    if plan.note:
        body["note"] = plan.note
    if plan.bound_s is not None:
        body["bound_s"] = plan.bound_s
    return {"schema": SCHEMA, "version": VERSION, **body, "words": words.known()}


def data_from_json(document: Any) -> PlanData:
    """What `to_json` wrote; InvalidFile when the document is not one."""
    _require_ours(document)
    try:
        return _plan_data(_plan_kind(Listed(Text()).read(document.get("words"), "words")).read(document, ""))
    except InvalidFile as broken:
        raise InvalidFile(
            f"this says it is a {SCHEMA} of version {VERSION}, but its contents are broken: {broken}."
            " Save the plan again, or make a new one with `vdnn plan`.",
            field=broken.field,
        ) from broken


def _plan_kind(words: tuple[str, ...]) -> Record:
    """What the document of a plan holds."""
    word, cost = Word(words), (Number(0), Whole(0), Word(words))
    return Record(
        {
            "schema": Text(),
            "version": Whole(0),
            "words": Listed(Text()),
            "made_with": ByName(Text()),
            "strategy": Text(),
            "budget_nbytes": Maybe(Whole(0)),
            "decisions": Listed(DECISION),
            "hardware": _HARDWARE,
            "graph": graph_kind(words),
            "costs": Table(dict(zip(COST_COLUMNS, cost, strict=True))),
        },
        {
            "offered_variants": Listed(Row((Whole(0), Listed(Made(OpCost, Row(cost, (word, Truth()))))))),
            "variants": Listed(Row((Whole(0), Whole(0)))),
            "lossy": Text(),
            "density": Number(0, 1),
            "form": Text(),
            "codecs_take_room": Truth(),
            "note": Text(has_lines=True),
            "bound_s": Number(0),
        },
    )


def _plan_data(read: Json) -> PlanData:
    graph = graph_from_json(read["graph"])
    with blamed("costs"):
        costs = CostTable(tuple(OpCost(*row) for row in read["costs"]))
    with blamed("the problem"):
        problem = Problem(
            graph,
            costs,
            read["hardware"],
            read["budget_nbytes"],
            dict(read.get("offered_variants", ())),
            read.get("lossy"),
            read.get("density", DENSITY),
            read.get("form", ""),
            codecs_take_room=read.get("codecs_take_room", False),
        )
    _require_countable(problem, read["decisions"])
    chosen = dict(read.get("variants", ()))
    _require_offered(problem, chosen)
    note, bound_s, made = read.get("note", ""), read.get("bound_s"), read["made_with"]
    return PlanData(problem, read["strategy"], read["decisions"], chosen, note, bound_s, made)


def _require_offered(problem: Problem, chosen: Mapping[int, int]) -> None:
    for moment, position in chosen.items():
        if position >= len(problem.variants.get(moment, ())):
            unfit("variants", "a choice among offered_variants", f"{position} of op {moment}")


def _require_countable(problem: Problem, decisions: Sequence[Decision]) -> None:
    """All bytes together are a number that the simulator can hold."""
    offered = (cost for costs in problem.variants.values() for cost in costs)
    nbytes = sum(storage.nbytes for storage in problem.graph.storages)
    nbytes += sum(cost.workspace_nbytes for cost in (*problem.costs.ops, *offered))
    nbytes += sum(getattr(decision.action, "nbytes", 0) for decision in decisions)
    if nbytes > LARGEST_WHOLE:
        raise InvalidFile(f"graph.storages, costs and decisions are {nbytes} bytes together", field="graph.storages")


def save(plan: PlanData, path: str | Path) -> Path:
    """Write the plan to `path`; the path, for whoever writes about it."""
    path = Path(path)
    path.write_text(json.dumps(to_json(plan), separators=(",", ":")), encoding="utf-8")
    return path


def data_in(path: str | Path) -> PlanData:
    """What `save` wrote to `path`."""
    try:
        document = json_in(path, PLAN_NBYTES)
    except InvalidFile as broken:
        raise InvalidFile(f"{path} does not hold a plan: {broken}. Plans are written by `plan.save(path)`.") from broken
    return data_from_json(document)


def _require_ours(document: Any) -> None:
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        found = document.get("schema") if isinstance(document, dict) else type(document).__name__
        raise InvalidFile(
            f"this is not a saved plan: its schema is {brief(found)}, a plan's is {SCHEMA!r}."
            " Plans are written by `plan.save(path)`.",
            field="schema",
        )
    if document.get("version") != VERSION:
        raise InvalidFile(
            f"this plan has version {brief(document.get('version'))} of {SCHEMA}; this vdnn reads version {VERSION}."
            " Make the plan again with this vdnn, or read it with the one that wrote it.",
            field="version",
        )


def _cost_to_json(cost: OpCost, words: Words) -> list[Any]:
    """The name of the variant, and whether it is exact, only where there is a name."""
    row = [cost.seconds, cost.workspace_nbytes, words.number(cost.source)]
    return [*row, words.number(cost.variant), cost.exact] if cost.variant else row


def hardware_to_json(hardware: Hardware) -> Json:
    return {
        "name": hardware.name,
        "flops_per_s": hardware.flops_per_s,
        "memory_bandwidth_bytes_per_s": hardware.memory_bandwidth_bytes_per_s,
        "tiers": [[tier.name, tier.nbytes] for tier in hardware.tiers],
        "links": [_link_to_json(link) for link in hardware.links],
        "launch_s": hardware.launch_s,
        "sources": [list(source) for source in hardware.sources],
    } | ({"codecs": [list(astuple(codec)) for codec in hardware.codecs]} if hardware.codecs else {})


def _link_to_json(link: Link) -> list[Any]:
    """The drag only where there is one."""
    row = [link.source, link.target, link.bandwidth_bytes_per_s, link.latency_s]
    return [*row, link.drag] if link.drag else row


_HARDWARE = Made(
    Hardware,
    Record(
        {
            "name": Text(),
            "flops_per_s": Number(0),
            "memory_bandwidth_bytes_per_s": Number(0),
            "tiers": Listed(row_of(Tier)),
            "links": Listed(row_of(Link)),
            "launch_s": Number(0),
            "sources": Listed(Row((Text(), Text()))),
        },
        {"codecs": Listed(row_of(CodecSpeed))},
    ),
)


def decision_to_json(decision: Decision) -> Json:
    return {"storage": decision.storage, "action": _action_to_json(decision.action), "reason": decision.reason}


def _action_to_json(action: Action) -> Json:
    columns = {column.name: getattr(action, column.name) for column in fields(action)}
    return {"kind": action.kind} | {name: list(v) if isinstance(v, tuple) else v for name, v in columns.items()}


@dataclass(frozen=True, slots=True)
class _ActionKind:
    """An object with the kind of an action, and that action's fields."""

    def read(self, value: Any, where: str) -> Action:
        if type(value) is not dict:
            unfit(where, "an object", value)
        action = OneOf(ACTIONS).read(value.get("kind"), f"{where}.kind")
        read: Action = of(action).read({name: part for name, part in value.items() if name != "kind"}, where)
        return read


DECISION = Made(Decision, Record({"storage": Whole(0), "action": _ActionKind(), "reason": Text(has_lines=True)}))
"""What `decision_to_json` writes."""
