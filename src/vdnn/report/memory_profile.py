"""Where the memory of a planned training step goes: the peak and what fills it, the layers, the curve over the moments.

Enters: a `Plan`. Leaves: a frozen, versioned `MemoryProfile` and its JSON; `text.py` and `plot.py` draw it. This is
what `vdnn inspect` shows, and what the first figures of vDNN (Rhu et al., MICRO 2016) showed for their networks:
feature maps fill most of the memory, and each layer's own maps are used early in forward and again late in backward.

The one idea: the timeline says how many bytes of each role are alive, the graph says which storages those are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from vdnn.ir import Graph, Role
from vdnn.plan.judge.residency import holdings
from vdnn.plan.judge.schedule import schedule
from vdnn.plan.model.timeline import ROLES, Timeline
from vdnn.plan.plan import Plan
from vdnn.report.pieces import TimelineSummary, summarize, versions

SCHEMA = "vdnn.memory-profile"
VERSION = 1

MAX_COLUMNS = 200  # a curve is for eyes: no terminal is much wider, and 70 000 ops would swamp the JSON

PERSISTENT = "persistent"
FEATURE_MAPS = "feature maps"
TRANSIENT = "transient"
BAND_OF_ROLE = {
    Role.PARAMETER: PERSISTENT,
    Role.OPTIMIZER_STATE: PERSISTENT,
    Role.BUFFER: PERSISTENT,
    Role.INPUT: PERSISTENT,
    Role.OUTPUT: TRANSIENT,
    Role.FEATURE_MAP: FEATURE_MAPS,
    Role.GRADIENT_MAP: TRANSIENT,
    Role.GRADIENT: TRANSIENT,
    Role.WORKSPACE: TRANSIENT,
}
"""The bands of the plot, bottom to top: what always stays, what waits for backward, what comes and goes."""


@dataclass(frozen=True, slots=True)
class Resident:
    """A storage that is alive at the peak, with the bytes it holds on the device there."""

    name: str
    module: str
    shape: tuple[int, ...]
    dtype: str
    role: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class LayerStash:
    """A module path with the bytes that its ops stash for backward, over `num_storages` storages."""

    module: str
    stashed_nbytes: int
    num_storages: int


@dataclass(frozen=True, slots=True)
class Curve:
    """Device bytes over the instructions in at most `MAX_COLUMNS` columns, split into bands.

    A column stands for the instruction with the most bytes among those it covers, so the highest column is the peak.
    """

    bands: Mapping[str, tuple[int, ...]]
    backward_from: int
    peak_column: int

    @property
    def num_columns(self) -> int:
        return len(self.bands[FEATURE_MAPS])


@dataclass(frozen=True, slots=True)
class MemoryProfile:
    """Everything `vdnn inspect` knows about one planned step."""

    name: str
    strategy: str
    hardware: str
    device_nbytes: int | None
    budget_nbytes: int | None
    num_forward: int
    num_ops: int
    stashed_nbytes: int
    predicted: TimelineSummary
    residents: tuple[Resident, ...]
    num_residents: int
    layers: tuple[LayerStash, ...]
    num_layers: int
    curve: Curve
    versions: Mapping[str, str]

    @property
    def dominant_role(self) -> str:
        """The role that fills most of the peak; empty for a step without bytes."""
        by_role = self.predicted.nbytes_by_role
        return max(by_role, key=by_role.__getitem__, default="")

    def to_dict(self) -> dict[str, Any]:
        return {"schema": SCHEMA, "version": VERSION, **asdict(self), "dominant_role": self.dominant_role}

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2)


def profile_memory(plan: Plan, *, name: str | None = None, top: int = 8) -> MemoryProfile:
    """Simulate the plan and say where its bytes are; `top` bounds the lists of storages and layers."""
    problem, graph, timeline = plan.problem, plan.problem.graph, plan.timeline
    residents, layers = residents_at_peak(plan), stash_by_layer(graph)
    return MemoryProfile(
        name=name or graph.name,
        strategy=plan.strategy,
        hardware=problem.hardware.name,
        device_nbytes=problem.hardware.device.nbytes,
        budget_nbytes=problem.budget_nbytes,
        num_forward=graph.num_forward,
        num_ops=len(graph),
        stashed_nbytes=sum(graph.storages[storage].nbytes for storage in graph.stashed),
        predicted=summarize(timeline, graph),
        residents=residents[:top],
        num_residents=len(residents),
        layers=layers[:top],
        num_layers=len(layers),
        curve=curve(timeline, graph.num_forward),
        versions=versions(),
    )


def residents_at_peak(plan: Plan) -> tuple[Resident, ...]:
    """What holds bytes on the device (the first tier) at the peak, largest first. The sizes add up to the peak."""
    held, at, modules = holdings(plan, schedule(plan)), plan.timeline.peak_at, _modules(plan.problem.graph)
    there = np.flatnonzero((held.tiers == 0) & (held.first <= at) & (at <= held.last) & (held.nbytes > 0))
    largest_first = there[np.argsort(-held.nbytes[there], kind="stable")]
    return tuple(
        _resident(plan, int(held.storages[row]), ROLES[held.roles[row]], int(held.nbytes[row]), modules)
        for row in largest_first
    )


def stash_by_layer(graph: Graph) -> tuple[LayerStash, ...]:
    """Stashed bytes summed by the module whose op made them, largest first."""
    modules = _modules(graph)
    nbytes: dict[str, int] = {}
    count: dict[str, int] = {}
    for storage in graph.stashed:
        module = modules.get(storage, "")
        nbytes[module] = nbytes.get(module, 0) + graph.storages[storage].nbytes
        count[module] = count.get(module, 0) + 1
    ranked = sorted(nbytes, key=lambda module: -nbytes[module])
    return tuple(LayerStash(module, nbytes[module], count[module]) for module in ranked)


def curve(timeline: Timeline, num_forward: int, max_columns: int = MAX_COLUMNS) -> Curve:
    """The device's bytes squeezed into columns; forward and backward never share one."""
    total = timeline.total()
    boundary = int(np.searchsorted(timeline.moments, num_forward)) if total.size else 0
    spans = [*_spans(0, boundary, total.size, max_columns), *_spans(boundary, total.size, total.size, max_columns)]
    highest = [begin + int(total[begin:end].argmax()) for begin, end in spans]
    nbytes = timeline.nbytes[timeline.device]
    bands = {
        band: tuple(int(nbytes[rows, at].sum()) for at in highest)
        for band in (PERSISTENT, FEATURE_MAPS, TRANSIENT)
        for rows in [[row for row, role in enumerate(ROLES) if BAND_OF_ROLE[role] == band]]
    }
    peak = max(range(len(highest)), key=lambda column: int(total[highest[column]]), default=0)
    return Curve(bands, sum(begin < boundary for begin, _ in spans), peak)


def _spans(begin: int, end: int, total: int, max_columns: int) -> list[tuple[int, int]]:
    """Cut instructions begin..end into near-equal runs, with this phase's share of the columns and at least one."""
    if begin == end:
        return []
    columns = min(end - begin, max(1, round(max_columns * (end - begin) / total)))
    edges = np.linspace(begin, end, columns + 1).astype(int)
    return [(int(a), int(b)) for a, b in pairwise(edges)]


def _resident(plan: Plan, position: int, role: Role, nbytes: int, modules: Mapping[int, str]) -> Resident:
    graph, timeline = plan.problem.graph, plan.timeline
    if position < 0:  # workspace belongs to the op that is running
        op = graph.ops[int(timeline.moments[timeline.peak_at])]
        return Resident(f"workspace of {op.name}", op.module, (nbytes,), "uint8", str(role), nbytes)
    storage = graph.storages[position]
    shape = graph.values[storage.values[0]].shape if storage.values else ()
    return Resident(storage.name, modules.get(position, ""), shape, storage.dtype, str(role), nbytes)


def _modules(graph: Graph) -> dict[int, str]:
    """The module whose op wrote each storage first; storages that only arrive from outside are not in it."""
    modules: dict[int, str] = {}
    for op in graph.ops:
        for value in op.writes:
            modules.setdefault(graph.values[value].storage, op.module)
    return modules
