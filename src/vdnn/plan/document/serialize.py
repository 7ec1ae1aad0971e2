"""A plan as JSON, and back, without losing a bit.

Enters: a plan, or a file that claims to hold one. Leaves: a dict of plain JSON types, a path, or an equal plan. A plan
carries its whole problem, so a file can be mailed to a colleague and re-checked there; `graph_json.py` writes its
largest part, the graph. The versions of vdnn and torch that made the plan are in the file too.

A file of another schema, another version or with broken contents raises `ForeignPlan`; nothing is guessed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import astuple, fields
from pathlib import Path
from typing import Any

from vdnn.cost.table import CostTable, OpCost
from vdnn.errors import ForeignPlan
from vdnn.hardware.device import CodecSpeed, Hardware, Link, Tier
from vdnn.plan.document.graph_json import Json, Words, graph_from_json, graph_to_json, table
from vdnn.plan.document.versions import made_with
from vdnn.plan.model.actions import ACTIONS, Action, Decision
from vdnn.plan.model.plan_data import PlanData
from vdnn.plan.model.problem import DENSITY, Problem

SCHEMA = "vdnn.plan"
VERSION = 1


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
            ("seconds", "workspace_nbytes", "source"),
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
    if plan.note:
        body["note"] = plan.note
    if plan.bound_s is not None:
        body["bound_s"] = plan.bound_s
    return {"schema": SCHEMA, "version": VERSION, **body, "words": words.known()}


def data_from_json(document: Json) -> PlanData:
    """What `to_json` wrote; ForeignPlan when the document is not one."""
    _require_ours(document)
    try:
        word: Callable[[int], str] = document["words"].__getitem__
        offered = {moment: _costs(rows, word) for moment, rows in document.get("offered_variants", ())}
        problem = Problem(
            graph_from_json(document["graph"], word),
            CostTable(_costs(document["costs"]["rows"], word)),
            _hardware_from_json(document["hardware"]),
            document["budget_nbytes"],
            offered,
            document.get("lossy"),
            document.get("density", DENSITY),
            document.get("form", ""),
        )
        decisions = tuple(decision_from_json(d) for d in document["decisions"])
        chosen = dict(document.get("variants", ()))
        note, bound_s, made = document.get("note", ""), document.get("bound_s"), dict(document.get("made_with", {}))
        return PlanData(problem, document["strategy"], decisions, chosen, note, bound_s, made)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as broken:
        raise ForeignPlan(
            f"this says it is a {SCHEMA} of version {VERSION}, but its contents are broken"
            f" ({type(broken).__name__}: {broken}). Save the plan again, or make a new one with `vdnn plan`."
        ) from broken


def save(plan: PlanData, path: str | Path) -> Path:
    """Write the plan to `path`; the path, for whoever writes about it."""
    path = Path(path)
    path.write_text(json.dumps(to_json(plan), separators=(",", ":")), encoding="utf-8")
    return path


def data_in(path: str | Path) -> PlanData:
    """What `save` wrote to `path`."""
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as broken:  # both not JSON and not UTF-8
        raise ForeignPlan(
            f"{path} does not hold a plan: it is not JSON ({broken}). Plans are written by `plan.save(path)`."
        ) from broken
    return data_from_json(document)


def _require_ours(document: Any) -> None:
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        found = document.get("schema") if isinstance(document, dict) else type(document).__name__
        raise ForeignPlan(
            f"this is not a saved plan: its schema is {found!r}, a plan's is {SCHEMA!r}."
            " Plans are written by `plan.save(path)`."
        )
    if document.get("version") != VERSION:
        raise ForeignPlan(
            f"this plan has version {document.get('version')!r} of {SCHEMA}; this vdnn reads version {VERSION}."
            " Make the plan again with this vdnn, or read it with the one that wrote it."
        )


def _cost_to_json(cost: OpCost, words: Words) -> list[Any]:
    """The name of the variant, and whether it is exact, only where there is a name."""
    row = [cost.seconds, cost.workspace_nbytes, words.number(cost.source)]
    return [*row, words.number(cost.variant), cost.exact] if cost.variant else row


def _costs(rows: Any, word: Callable[[int], str]) -> tuple[OpCost, ...]:
    return tuple(_cost_from_json(word, *row) for row in rows)


def _cost_from_json(
    word: Callable[[int], str], seconds: float, nbytes: int, source: int, variant: int | None = None, exact: bool = True
) -> OpCost:
    return OpCost(seconds, nbytes, word(source), "" if variant is None else word(variant), exact)


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


def _hardware_from_json(document: Json) -> Hardware:
    return Hardware(
        name=document["name"],
        flops_per_s=document["flops_per_s"],
        memory_bandwidth_bytes_per_s=document["memory_bandwidth_bytes_per_s"],
        tiers=tuple(Tier(*row) for row in document["tiers"]),
        links=tuple(Link(*row) for row in document["links"]),
        launch_s=document["launch_s"],
        sources=tuple((what, where) for what, where in document["sources"]),
        codecs=tuple(CodecSpeed(*row) for row in document.get("codecs", ())),
    )


def decision_to_json(decision: Decision) -> Json:
    return {"storage": decision.storage, "action": _action_to_json(decision.action), "reason": decision.reason}


def _action_to_json(action: Action) -> Json:
    columns = {column.name: getattr(action, column.name) for column in fields(action)}
    return {"kind": action.kind} | {name: list(v) if isinstance(v, tuple) else v for name, v in columns.items()}


def decision_from_json(document: Json) -> Decision:
    action: Json = {name: tuple(v) if isinstance(v, list) else v for name, v in document["action"].items()}
    return Decision(document["storage"], ACTIONS[action.pop("kind")](**action), document["reason"])
