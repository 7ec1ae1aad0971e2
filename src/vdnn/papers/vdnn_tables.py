"""The memory reductions of the vDNN paper (MICRO 2016, section 5.1), computed for its networks on its machine.

Enters: a network and a strategy. Leaves: a row with the baseline's bytes, the plan's peak and average, and what they
save. The baseline is the paper's (section 2.3): every map of every layer for the whole step, two gradient maps of the
largest size, all weights and their gradients, and the largest workspace once.

The paper does not say what its averages are averages of. Here an average is the mean over layer ops of the bytes that
are live while the op runs, and both readings of "memory" are given: everything, or what vDNN manages, which is
maps, gradient maps and workspace without the weights. Workspaces are zero, the paper's memory-optimal setting: which
algorithms cuDNN 4 had and how much they took is not known.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vdnn.cost.roofline import roofline
from vdnn.hardware.device import Hardware
from vdnn.hardware.presets import preset
from vdnn.ir import Graph, Role
from vdnn.plan.model.problem import Problem
from vdnn.plan.model.timeline import ROLES
from vdnn.plan.plan import Plan
from vdnn.plan.strategy_table import solve

PAPER_DEVICE = "titan-x"

PUBLISHED_AVERAGE_REDUCTION = {"AlexNet(128)": 0.89, "OverFeat(128)": 0.91, "GoogLeNet(128)": 0.95}
"""What the paper's abstract and conclusion state: "up to", by vDNN over its baseline."""

_UNMANAGED = frozenset({Role.PARAMETER, Role.OPTIMIZER_STATE, Role.GRADIENT})


@dataclass(frozen=True, slots=True)
class Reduction:
    """One row: what a strategy saves of the baseline's bytes. Shares are of 1; `managed` leaves the weights out."""

    network: str
    strategy: str
    baseline_nbytes: int
    peak_nbytes: int
    average_nbytes: float
    managed_baseline_nbytes: int
    managed_peak_nbytes: int
    managed_average_nbytes: float
    step_time_s: float

    @property
    def maximum_reduction(self) -> float:
        """Of the memory that must be there: baseline against peak."""
        return 1 - self.peak_nbytes / self.baseline_nbytes

    @property
    def average_reduction(self) -> float:
        return 1 - self.average_nbytes / self.baseline_nbytes

    @property
    def managed_maximum_reduction(self) -> float:
        return 1 - self.managed_peak_nbytes / self.managed_baseline_nbytes

    @property
    def managed_average_reduction(self) -> float:
        return 1 - self.managed_average_nbytes / self.managed_baseline_nbytes


def paper_problem(graph: Graph, budget_nbytes: int | None = None, hardware: Hardware | None = None) -> Problem:
    """A network on the paper's machine, with times from the roofline and no workspaces."""
    machine = hardware or preset(PAPER_DEVICE)
    return Problem(graph, roofline(graph, machine), machine, budget_nbytes)


def reduction(graph: Graph, strategy: str, budget_nbytes: int | None = None) -> Reduction:
    """One row of the table; Infeasible when the strategy cannot meet the budget."""
    return reduction_of(solve(paper_problem(graph, budget_nbytes), strategy))


def reduction_of(plan: Plan) -> Reduction:
    """The row of a plan that exists."""
    graph = plan.problem.graph
    everything = running_nbytes(plan, frozenset())
    managed = running_nbytes(plan, _UNMANAGED)
    return Reduction(
        network=graph.name,
        strategy=plan.strategy,
        baseline_nbytes=baseline_nbytes(plan.problem),
        peak_nbytes=int(everything.max()),
        average_nbytes=float(everything.mean()),
        managed_baseline_nbytes=baseline_nbytes(plan.problem) - 2 * weights_nbytes(graph),
        managed_peak_nbytes=int(managed.max()),
        managed_average_nbytes=float(managed.mean()),
        step_time_s=plan.step_time_s,
    )


def running_nbytes(plan: Plan, leaving_out: frozenset[Role]) -> np.ndarray:
    """Device bytes while each op runs, of all roles but some."""
    timeline = plan.timeline
    rows = [row for row, role in enumerate(ROLES) if role not in leaving_out]
    total = timeline.nbytes[timeline.device][rows].sum(axis=0)
    most = np.zeros(len(plan.problem.graph), dtype=np.int64)
    np.maximum.at(most, timeline.moments, total)
    return most


def maps_nbytes(graph: Graph) -> int:
    """Every X and Y of the network, the images included; in-place activations have none of their own, and the loss
    overwrites its input.
    """
    loss = {graph.values[value].storage for op in graph.ops if op.name == "softmax" for value in op.writes}
    blocks = (storage for position, storage in enumerate(graph.storages) if position not in loss)
    return sum(storage.nbytes for storage in blocks if storage.role is Role.FEATURE_MAP)


def weights_nbytes(graph: Graph) -> int:
    """Weights and biases, once."""
    return sum(storage.nbytes for storage in graph.storages if storage.role is Role.PARAMETER)


def baseline_nbytes(problem: Problem) -> int:
    """The paper's baseline allocation for the whole network."""
    graph = problem.graph
    gradient = max(storage.nbytes for storage in graph.storages if storage.role is Role.GRADIENT_MAP)
    workspace = max(cost.workspace_nbytes for cost in problem.costs.ops)
    return maps_nbytes(graph) + 2 * gradient + 2 * weights_nbytes(graph) + workspace
