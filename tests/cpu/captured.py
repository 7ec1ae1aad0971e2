"""Look into captured graphs: ops by target, and storages by name."""

from __future__ import annotations

from typing import Any

from equivalence import plan

from vdnn.ir import Graph, Op, Role


def graph_of(model: Any, *args: Any, **options: Any) -> Graph:
    """One training step of `model`, as `vdnn.plan` sees it."""
    return plan(model, args, **options).problem.graph


def ops_of(graph: Graph, target: str) -> list[Op]:
    """All ops whose target, without its overload, is `target`, in execution order: "relu_" finds aten.relu_.default."""
    return [op for op in graph.ops if op.target.split(".")[1:2] == [target]]


def only_op(graph: Graph, target: str) -> Op:
    found = ops_of(graph, target)
    assert len(found) == 1, f"{len(found)} ops are {target}, among {[op.target for op in graph.ops]}"
    return found[0]


def stashed(graph: Graph) -> dict[str, str]:
    """What backward takes of everything that forward leaves for it, by storage name."""
    return {graph.storages[storage].name: str(taken.need) for storage, taken in graph.backward_needs.items()}


def storages_written(graph: Graph, op: Op) -> list[int]:
    return [graph.values[value].storage for value in op.writes]


def storages_read(graph: Graph, op: Op) -> list[int]:
    return [graph.values[read.value].storage for read in op.reads]


def nbytes_of(graph: Graph, role: Role) -> int:
    return sum(storage.nbytes for storage in graph.storages if storage.role is role)


def names_of(graph: Graph, role: Role) -> list[str]:
    return [storage.name for storage in graph.storages if storage.role is role]
