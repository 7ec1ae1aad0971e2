"""The layers of a network, found again in its ops.

Enters: a graph of aten ops. Leaves: one `Layer` per forward op that computes something: what kind it is, which map it
takes, and where its backward runs. The papers think in layers, our graphs in ops; this file is the only dictionary
between the two. A backward op belongs to the forward op of its module whose maps it reads; where a module runs several
times the one that shares most with it, and of equals the one that ran last, since backward goes in reverse.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from vdnn.ir import Graph, Op, Role, Trait
from vdnn.known_ops import KNOWN_NAMESPACES, known
from vdnn.known_ops.known_op import LayerKind

_SHARED_BY_ALL = frozenset({Role.PARAMETER, Role.BUFFER, Role.OPTIMIZER_STATE})  # says nothing about which layer reads


@dataclass(frozen=True, slots=True)
class Layer:
    """`moment` runs it forward, `backward` is the moment of its backward op (None: it has none); `x` is the storage of
    the map it takes (None: it takes none).
    """

    kind: LayerKind
    moment: int
    backward: int | None
    x: int | None


def layers(graph: Graph) -> tuple[Layer, ...]:
    """Forward ops that compute, in execution order, each with its backward op."""
    readers = _backward_readers(graph)
    taken: set[int] = set()
    found: list[Layer] = []
    for moment in range(graph.num_forward - 1, -1, -1):
        if graph.ops[moment].has(Trait.VIEW):
            continue
        backward = _backward_of(graph, moment, readers, taken)
        if backward is not None:
            taken.add(backward)
        found.append(Layer(kind_of(graph.ops[moment]), moment, backward, _first_map(graph, graph.ops[moment])))
    return tuple(reversed(found))


def kind_of(op: Op) -> LayerKind:
    return known(name_in_table(op)).layer


def base_name(op: Op) -> str:
    """`aten.max_pool2d_with_indices.default` as `max_pool2d_with_indices`; a name without dots as it is."""
    parts = op.target.split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def name_in_table(op: Op) -> str:
    """The name under which something may be known of it: none for an op of another library."""
    parts = op.target.split(".")
    return "" if len(parts) > 2 and parts[0] not in KNOWN_NAMESPACES else base_name(op)


def _first_map(graph: Graph, op: Op) -> int | None:
    return next(iter(_maps(graph, (read.value for read in op.reads))), None)


def _maps(graph: Graph, values: Iterable[int]) -> list[int]:
    """Storages of values, in order, without those that every layer may share."""
    storages = dict.fromkeys(graph.values[value].storage for value in values)
    return [storage for storage in storages if graph.storages[storage].role not in _SHARED_BY_ALL]


def _backward_readers(graph: Graph) -> dict[int, list[int]]:
    """Of each storage: the backward ops that read it and compute something."""
    readers: dict[int, list[int]] = defaultdict(list)
    for moment in range(graph.num_forward, len(graph)):
        if not graph.ops[moment].has(Trait.VIEW):
            for storage in _maps(graph, (read.value for read in graph.ops[moment].reads)):
                readers[storage].append(moment)
    return readers


def _backward_of(graph: Graph, moment: int, readers: dict[int, list[int]], taken: set[int]) -> int | None:
    op = graph.ops[moment]
    shared: dict[int, int] = defaultdict(int)
    for storage in _maps(graph, (*(read.value for read in op.reads), *op.writes)):
        for reader in readers.get(storage, ()):
            if reader not in taken:
                shared[reader] += 1
    named = [b for b in shared if base_name(graph.ops[b]) == f"{base_name(op)}_backward"]
    candidates = named if kind_of(op) is not LayerKind.OTHER else list(shared)
    same_module = [b for b in candidates if graph.ops[b].module == op.module]
    if kind_of(op) is LayerKind.OTHER:
        candidates = same_module
    return max(same_module or candidates, key=lambda b: (shared[b], -b), default=None)
