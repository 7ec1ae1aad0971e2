"""Recomputation in the SuperNeurons paper (Wang et al., PPoPP 2018, table 1), computed for its networks.

Enters: a network and a strategy. Leaves: a row with the number of layers that run a second time and the peak. Bytes are
what the paper regulates: maps, their gradients and workspaces, while weights, their gradients, masks and images are
there all the time. Workspaces are zero, since which algorithms cuDNN chose is not known.

The three strategies recompute and keep every checkpoint. The paper's peaks belong to its whole runtime, which also
moves the outputs of convolutions to the host: `superneurons` is the strategy to hold beside them.
"""

from __future__ import annotations

from dataclasses import dataclass

from vdnn.hardware.presets import preset
from vdnn.ir import Graph, Role, Trait
from vdnn.papers.vdnn_tables import paper_problem, running_nbytes
from vdnn.plan.plan import Plan
from vdnn.plan.problem import Problem
from vdnn.plan.schedule import Kind, schedule
from vdnn.plan.strategies import solve
from vdnn.plan.timeline import ROLES

MACHINE = "k40c"
REGULATED = frozenset({Role.FEATURE_MAP, Role.GRADIENT_MAP, Role.WORKSPACE})
RECOMPUTING = ("recompute-speed", "recompute-memory", "recompute-cost")

PUBLISHED_REPLAYS = {
    "AlexNet(200)": (14, 23, 17),
    "ResNet50(32)": (84, 118, 85),
    "ResNet101(32)": (169, 237, 170),
}
"""Extra forward layers, by speed-centric, memory-centric and cost-aware recomputation."""

PUBLISHED_PEAKS_MIB = {
    "AlexNet(200)": (993.018, 886.23, 886.23),
    "ResNet50(32)": (455.125, 401.0, 401.0),
    "ResNet101(32)": (455.125, 401.0, 401.0),
}
"""Peaks in the same order. Lines to compare with: of these only the AlexNet's 886.23 follows from shapes."""

PUBLISHED_ALEXNET_MIB = {"baseline": 2189.437, "liveness": 1489.355, "liveness and offloading": 1132.155}
"""Peaks of AlexNet(200) before recomputation, technique after technique."""


@dataclass(frozen=True, slots=True)
class Row:
    """One network under one strategy. `peak_at` names the layer's op during which the peak is reached."""

    network: str
    strategy: str
    num_replays: int
    peak_nbytes: int
    peak_at: str


def superneurons_problem(graph: Graph) -> Problem:
    """A network on the paper's machine, with times from the roofline and no workspaces."""
    return paper_problem(graph, hardware=preset(MACHINE))


def row(graph: Graph, strategy: str) -> Row:
    plan = solve(superneurons_problem(graph), strategy)
    nbytes = running_nbytes(plan, frozenset(ROLES) - REGULATED)
    peak_at = graph.ops[int(nbytes.argmax())].name
    return Row(graph.name, strategy, num_replays(plan), int(nbytes.max()), peak_at)


def num_replays(plan: Plan) -> int:
    """Ops that run again; a view computes nothing."""
    ops = plan.problem.graph.ops
    return sum(i.kind is Kind.REPLAY and not ops[i.op].has(Trait.VIEW) for i in schedule(plan))


def forward_nbytes(graph: Graph) -> int:
    """The outputs of all layers."""
    return sum(storage.nbytes for storage in graph.storages if storage.role is Role.FEATURE_MAP)


def baseline_nbytes(graph: Graph) -> int:
    """Every map and every gradient of a map, none of them sharing memory."""
    return sum(storage.nbytes for storage in graph.storages if storage.role in REGULATED)
