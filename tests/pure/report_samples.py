"""A small training step for the tests of the report: a chain of layers whose maps shrink, with hand-made costs."""

from __future__ import annotations

from vdnn.cost.table import CostTable, OpCost
from vdnn.hardware.device import Hardware, Link, Tier
from vdnn.ir import Graph, Op, Phase, Read, Role, Storage, Value
from vdnn.plan.model.actions import Decision
from vdnn.plan.model.problem import Problem
from vdnn.plan.plan import Plan
from vdnn.units import GiB, MiB


class Builder:
    """Collects values with a storage each."""

    def __init__(self) -> None:
        self.values: list[Value] = []
        self.storages: list[Storage] = []

    def new(self, name: str, nbytes: int, role: Role, shape: tuple[int, ...] = (8, 4)) -> int:
        position = len(self.values)
        self.values.append(Value(name, position, shape, "float32"))
        self.storages.append(Storage(name, nbytes, role, "float32", (position,)))
        return position


def chain(num_layers: int = 6, nbytes: int = 64 * MiB, prefix: str = "features") -> Graph:
    """Layer i makes a map of nbytes * 0.9^i; backward reads the maps in reverse and makes a gradient per weight."""
    build, ops = Builder(), []
    maps = [build.new("images", nbytes // 2, Role.INPUT)]
    weights = [build.new(f"{prefix}.{i}.weight", nbytes // 8, Role.PARAMETER) for i in range(num_layers)]
    for i, weight in enumerate(weights):
        made = build.new(f"map_{i}", nbytes * 9**i // 10**i, Role.FEATURE_MAP)
        reads = (Read(maps[-1]), Read(weight))
        ops.append(Op(f"layer_{i}", "aten.linear", Phase.FORWARD, f"{prefix}.{i}", reads, (made,)))
        maps.append(made)
    tangent = coming = build.new("tangent", 4, Role.GRADIENT_MAP)
    held = [maps[-1]]
    for i in reversed(range(num_layers)):
        going = build.new(f"grad_map_{i}", nbytes * 9**i // 10**i, Role.GRADIENT_MAP)
        gradient = build.new(f"grad_{i}", nbytes // 8, Role.GRADIENT)
        reads = (Read(coming), Read(maps[i]), Read(maps[i + 1]))
        op = Op(
            f"layer_{i}_backward", "aten.linear_backward", Phase.BACKWARD, f"{prefix}.{i}", reads, (going, gradient)
        )
        ops.append(op)
        held.append(gradient)
        coming = going
    inputs = (maps[0], *weights)
    return Graph("chain", tuple(ops), tuple(build.values), tuple(build.storages), inputs, (tangent,), tuple(held))


def planned(graph: Graph | None = None, decisions: tuple[Decision, ...] = (), workspace_nbytes: int = 3 * MiB) -> Plan:
    graph = graph or chain()
    links = (Link("device", "host", 1e9), Link("host", "device", 1e9))
    hardware = Hardware("toy", 1e12, 1e11, (Tier("device", 2 * GiB), Tier("host")), links)
    costs = CostTable(tuple(OpCost(0.002, workspace_nbytes) for _ in graph.ops))
    return Plan(Problem(graph, costs, hardware), "keep-all", decisions)
