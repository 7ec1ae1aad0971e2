"""Recomputation in the SuperNeurons paper (Wang et al., PPoPP 2018, table 1), computed for its networks.

Enters: a network and a strategy. Leaves: a row with the number of layers that run a second time and the peak. Bytes are
what the paper regulates: maps, their gradients and workspaces, while weights, their gradients, masks and images are
there all the time. Workspaces are zero, since which algorithms cuDNN chose is not known.

The three strategies recompute and keep every checkpoint. The paper's peaks belong to its whole runtime, which also
moves the outputs of convolutions to the host: `superneurons` is the strategy to hold beside them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from vdnn.hardware.presets import preset
from vdnn.ir import Graph, Op, Role, Trait
from vdnn.papers.vdnn_tables import paper_problem, running_nbytes
from vdnn.plan.judge.schedule import Kind, schedule
from vdnn.plan.model.actions import Decision, Offload
from vdnn.plan.model.gaps import gaps
from vdnn.plan.model.problem import Problem
from vdnn.plan.model.timeline import ROLES
from vdnn.plan.plan import Plan
from vdnn.plan.strategy_table import solve

PAPER_DEVICE = "k40c"
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
class NetworkPeak:
    """One network under one strategy. `peak_at` names the layer's op during which the peak is reached."""

    network: str
    strategy: str
    num_replays: int
    peak_nbytes: int
    peak_at: str


def superneurons_problem(graph: Graph) -> Problem:
    """A network on the paper's machine, with times from the roofline and no workspaces."""
    return paper_problem(graph, hardware=preset(PAPER_DEVICE))


def row(graph: Graph, strategy: str) -> NetworkPeak:
    plan = solve(superneurons_problem(graph), strategy)
    nbytes = _regulated_nbytes(plan)
    peak_at = graph.ops[int(nbytes.argmax())].name
    return NetworkPeak(graph.name, strategy, num_replays(plan), int(nbytes.max()), peak_at)


def regulated_peak(plan: Plan) -> int:
    return int(_regulated_nbytes(plan).max())


def _regulated_nbytes(plan: Plan) -> npt.NDArray[np.int64]:
    return running_nbytes(plan, frozenset(ROLES) - REGULATED)


def offloading_convolutions(problem: Problem) -> Plan:
    """The paper's unified tensor pool alone: every output of a convolution leaves after its last use in forward and is
    fetched at its first in backward."""
    graph = problem.graph
    made = {graph.values[value].storage for op in graph.ops[: graph.num_forward] for value in _convolved(op)}
    host = problem.hardware.tiers[1].name
    leaving = [gap for gap in gaps(graph) if gap.storage in made and gap.leave < graph.num_forward <= gap.until]
    decisions = (
        Decision(g.storage, Offload(host, g.leave, g.until, g.until), "output of a convolution") for g in leaving
    )
    return Plan(problem, "offload-convolutions", tuple(decisions))


def _convolved(op: Op) -> tuple[int, ...]:
    return op.writes if op.target == "conv" else ()


def on_the_card(problem: Problem) -> Plan:
    """superneurons with the device's whole memory as budget: what is moved is what has to be."""
    return solve(replace(problem, budget_nbytes=problem.hardware.device.nbytes), "superneurons")


def moved_nbytes(plan: Plan) -> int:
    """Bytes over the device's links, both ways."""
    storages = plan.problem.graph.storages
    return sum(2 * storages[d.storage].nbytes for d in plan.decisions if isinstance(d.action, Offload))


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
