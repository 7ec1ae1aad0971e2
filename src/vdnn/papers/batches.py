"""The largest batch that fits, without capturing a network once per try.

Enters: the graphs of one training step at two batches. Leaves: its graph at any batch, and from that the largest one
that a strategy can plan within a budget. The one idea: the ops of a step do not depend on the batch, and every size in
it is a constant plus a multiple of the batch, so two captures say all of them. Where that does not hold, this refuses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from vdnn.cost.roofline import roofline
from vdnn.errors import Infeasible
from vdnn.hardware.device import Hardware
from vdnn.ir import Graph, Op, Read, Storage, Value
from vdnn.plan.model.bounds import minimum_budget
from vdnn.plan.model.problem import Problem
from vdnn.plan.strategy_table import solve


@dataclass(frozen=True)
class Scaled:
    """A step at `batch` and at `batch + 1` samples, from which it follows at any other."""

    batch: int
    graph: Graph
    next_graph: Graph

    def __post_init__(self) -> None:
        if _skeleton(self.graph) != _skeleton(self.next_graph):
            raise ValueError(
                f"{self.graph.name} is another program with {self.batch + 1} samples than with {self.batch}"
            )

    def at(self, batch: int) -> Graph:
        """The graph with every size moved on by as much per sample as it grows from the first graph to the second."""
        steps = batch - self.batch

        def moved(one: float, other: float) -> float:
            return one + (other - one) * steps

        def whole(one: int, other: int) -> int:
            return int(moved(one, other))

        def value(one: Value, other: Value) -> Value:
            return replace(one, shape=tuple(map(whole, one.shape, other.shape)))

        def storage(one: Storage, other: Storage) -> Storage:
            return replace(one, nbytes=whole(one.nbytes, other.nbytes))

        def read(one: Read, other: Read) -> Read:
            return replace(one, detail=tuple(map(moved, one.detail, other.detail))) if one.detail else one

        def op(one: Op, other: Op) -> Op:
            return replace(one, reads=tuple(map(read, one.reads, other.reads)), flops=whole(one.flops, other.flops))

        pairs = self.graph, self.next_graph
        return replace(
            self.graph,
            ops=tuple(map(op, *(graph.ops for graph in pairs))),
            values=tuple(map(value, *(graph.values for graph in pairs))),
            storages=tuple(map(storage, *(graph.storages for graph in pairs))),
        )


def _skeleton(graph: Graph) -> tuple[object, ...]:
    """Everything that must not depend on the batch."""
    ops = [
        (
            op.target,
            op.phase,
            op.writes,
            op.traits,
            [(r.value, r.need, len(r.detail), r.reads_encoded) for r in op.reads],
        )
        for op in graph.ops
    ]
    values = [(value.storage, len(value.shape), value.dtype) for value in graph.values]
    storages = [(storage.role, storage.dtype, storage.values, storage.alphabet) for storage in graph.storages]
    return ops, values, storages, graph.inputs, graph.tangents, graph.held


_MOVE_AND_REPLAY = frozenset({"offload", "superneurons"})
"""Strategies that cannot go below the floor of moving, which is known long before they have tried everything."""


def fits(graph: Graph, hardware: Hardware, strategy: str) -> bool:
    """Whether the strategy has a plan within the device's memory, all of which is the budget."""
    budget_nbytes = hardware.device.nbytes
    problem = Problem(graph, roofline(graph, hardware), hardware, budget_nbytes)
    if budget_nbytes is not None and strategy in _MOVE_AND_REPLAY and minimum_budget(problem)[0] > budget_nbytes:
        return False
    try:
        plan = solve(problem, strategy)
    except Infeasible:
        return False
    return budget_nbytes is None or plan.peak_nbytes <= budget_nbytes


def guess(graph_of: Callable[[int], Graph], hardware: Hardware, strategy: str, near: tuple[int, int]) -> int:
    """The size at which a strategy's least would meet the device's memory, from what it is at two small sizes."""
    assert hardware.device.nbytes is not None, f"{hardware.name} has a size"
    one, other = (_least_nbytes(graph_of(size), hardware, strategy) for size in near)
    per_size = (other - one) / (near[1] - near[0])
    return max(int(near[0] + (hardware.device.nbytes - one) / per_size), 1)


def _least_nbytes(graph: Graph, hardware: Hardware, strategy: str) -> int:
    """Of strategies that move storages, the floor of moving: near enough to begin a search."""
    problem = Problem(graph, roofline(graph, hardware), hardware)
    return solve(problem, strategy).peak_nbytes if strategy == "keep-all" else minimum_budget(problem)[0]


def largest(fits: Callable[[int], bool], start: int = 1) -> int:
    """The largest number that fits, 0 if not even 1 does, looked for from `start`; below what fits, everything fits."""
    low, high, step = 0, max(start, 1), 1
    if fits(high):
        while fits(high + step):
            high, step = high + step, 2 * step
        low, high = high, high + step
    else:
        while high > 1 and not fits(max(high - step, 1)):
            high, step = max(high - step, 1), 2 * step
        low = max(high - step, 1) if high > 1 else 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
