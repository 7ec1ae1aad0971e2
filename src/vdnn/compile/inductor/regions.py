"""Neighbours in a half that one fused kernel may compute.

Enters: one of the two programs of `rewrite/halves.py`. Leaves: regions, each a run of neighbours that only compute
(element by element, sums, normalisations) with no call to the runtime between them. `compile/inductor/with_kernels.py`
puts kernels in their place.

The one idea: a storage is what a region takes and gives. A view costs nothing: it is inside where an op of the region
reads it and made again outside where somebody else does; an op that writes in place returns the storage it was given.
What is left to return is one tensor for each storage that is born in the region and outlives it.

Note: [Random numbers and products stay outside]
Random ops draw from PyTorch's generator, in the order of the trace, so that masks are those of eager mode. Convolutions
and matrix products are library calls in a fused program too: inside a region they would gain nothing and would have
their workspace in a place where no plan counts it.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from vdnn.capture.nodes import is_getitem, tensor_of, value_of
from vdnn.capture.ops.overloads import base_name, overloads
from vdnn.capture.ops.traits import traits_of
from vdnn.ir import Trait
from vdnn.known_ops import known
from vdnn.rewrite.halves import Half
from vdnn.runtime.running_step import look, phantom
from vdnn.torch_private import OpOverload, schema_of

NO_MEMORY: frozenset[object] = frozenset({look, phantom})
"""Calls of the runtime that only look at bytes, so that they may as well come before a region."""

_NEVER_FUSED = frozenset({Trait.RANDOM, Trait.MUST_KEEP})

Neighbours = tuple[fx.Node, ...]
"""Neighbours in a half, in order."""


@dataclass(frozen=True)
class Region:
    """`ops` are neighbours in their half and compute something; `nodes` are they, their results and the views between
    them, in order."""

    ops: tuple[fx.Node, ...]
    nodes: tuple[fx.Node, ...]
    inputs: tuple[fx.Node, ...]
    outputs: tuple[fx.Node, ...]
    """One value for each storage that is born here and read later."""
    scratch: frozenset[int]
    """Positions of inputs that are written over and never read again: nobody misses it if they are not."""

    @functools.cached_property
    def module(self) -> fx.GraphModule:
        """The region as a function of its inputs, op by op as it was traced."""
        graph = fx.Graph()
        copies = {node: graph.placeholder(f"input_{at}") for at, node in enumerate(self.inputs)}
        for node in self.nodes:
            copies[node] = graph.node_copy(node, copies.__getitem__)
        graph.output([copies[node] for node in self.outputs])
        return fx.GraphModule({}, graph)


class _Run:
    """Neighbours, as far as they are found.

    A kernel takes its inputs for separate memory: of a storage that it writes into, it may be given one look only."""

    def __init__(self, half: Half) -> None:
        self.nodes: list[fx.Node] = []
        self.inside: set[fx.Node] = set()
        self._storage_of = half.storage_of
        self._looks: dict[int, set[fx.Node]] = defaultdict(set)
        self._written: set[int] = set()

    def takes(self, node: fx.Node) -> bool:
        """Whether the node could join; then it has."""
        if is_getitem(node):
            if node.args[0] not in self.inside:
                return False
        elif not _may_join(node) or not self._keeps_looks_apart(node):
            return False
        self.nodes.append(node)
        self.inside.add(node)
        return True

    def _keeps_looks_apart(self, node: fx.Node) -> bool:
        given = [source for source in node.all_input_nodes if source not in self.inside]
        roots = {_root(target, self.inside) for target, _ in _written(node)} - self.inside
        if any(root not in self._storage_of for root in roots):
            return False
        written = self._written | {self._storage_of[root] for root in roots}
        looks: dict[int, set[fx.Node]] = defaultdict(set)
        for source in (*given, *roots):
            if source in self._storage_of:
                looks[self._storage_of[source]].add(source)
        if any(storage in written and len(self._looks[storage] | own) > 1 for storage, own in looks.items()):
            return False
        self._written = written
        for storage, own in looks.items():
            self._looks[storage] |= own
        return True


def neighbours_of(half: Half) -> Iterator[Neighbours]:
    """The longest runs of nodes that a region may take, each with two ops or more."""
    run = _Run(half)
    for node in half.module.graph.nodes:
        if _is_hoisted(node) and run.inside.isdisjoint(node.all_input_nodes):
            continue
        if not run.takes(node):
            yield from _worthwhile(run.nodes)
            run = _Run(half)
            run.takes(node)
    yield from _worthwhile(run.nodes)


def computing(nodes: Iterable[fx.Node]) -> tuple[fx.Node, ...]:
    """Those that do more than name a part or a shape of what is there."""
    return tuple(node for node in nodes if not is_getitem(node) and Trait.VIEW not in traits_of(node.target))


def split(neighbours: Sequence[fx.Node]) -> tuple[Neighbours, ...]:
    """The parts before and from the middle op, as far as they are still worth a kernel."""
    ops = computing(neighbours)
    middle = list(neighbours).index(ops[len(ops) // 2])
    return tuple(part for half in (neighbours[:middle], neighbours[middle:]) for part in _worthwhile(half))


def region_of(half: Half, neighbours: Sequence[fx.Node]) -> Region:
    ops, inside = computing(neighbours), set(neighbours)
    needed = _needed(neighbours)
    nodes = tuple(node for node in neighbours if node in needed)
    inputs = tuple(dict.fromkeys(s for node in nodes for s in node.all_input_nodes if s not in needed))
    seen_outside = [node for node in neighbours if any(user not in inside for user in node.users)]
    outputs = tuple(dict.fromkeys(root for node in seen_outside if (root := _root(node, inside)) in inside))
    scratch = frozenset(at for at, node in enumerate(inputs) if _is_scratch(half, node, neighbours))
    return Region(ops, nodes, inputs, outputs, scratch)


def _needed(neighbours: Sequence[fx.Node]) -> set[fx.Node]:
    """The ops, and the views and parts that they read. What only others look at is made outside."""
    needed = set(computing(neighbours))
    for node in reversed(neighbours):
        if not needed.isdisjoint(node.users) or (is_getitem(node) and node.args[0] in needed):
            needed.add(node)
    return needed


def _worthwhile(run: Sequence[fx.Node]) -> Iterator[Neighbours]:
    if len(computing(run)) >= 2:
        yield tuple(run)


def _is_hoisted(node: fx.Node) -> bool:
    return node.op == "get_attr" or node.target in NO_MEMORY


def _may_join(node: fx.Node) -> bool:
    if node.op != "call_function" or not isinstance(node.target, OpOverload) or not _is_fused(node.target):
        return False
    if any(source.target is phantom for source in node.all_input_nodes):
        return False  # eager's kernel reads only its shape; another way to compute the same may read more
    values = [tensor_of(source) for source in node.all_input_nodes]
    return bool(values) and all(_is_plain(value) for value in (*values, *_results(node)))


def _results(node: fx.Node) -> list[Any]:
    value = value_of(node)
    items = value if isinstance(value, (tuple, list)) else [value]
    return [item for item in items if item is not None]


def _is_plain(value: Any) -> bool:
    """Dense, real, with a shape that is known."""
    return (
        isinstance(value, torch.Tensor)
        and value.layout is torch.strided
        and not value.is_complex()
        and all(isinstance(number, int) for number in (*value.shape, *value.stride()))
    )


@functools.cache
def _is_fused(op: OpOverload) -> bool:
    if op.namespace != "aten" or _NEVER_FUSED & traits_of(op):
        return False
    fuses = known(base_name(op)).inductor_fuses
    aliases = [result.alias_info is not None for result in schema_of(op).returns]
    if len(aliases) != 1 and any(aliases):
        return False  # several results in storages that were given: which is which, only the schema of each op says
    if Trait.VIEW in traits_of(op):
        return fuses is not False and isinstance(schema_of(op).returns[0].type, torch.TensorType)
    tags = {tag for overload in overloads(base_name(op)) for tag in overload.tags}
    return bool(fuses) or bool(tags & {torch.Tag.pointwise, torch.Tag.reduction})


def source_of(node: fx.Node) -> fx.Node | None:
    """The argument whose storage a node returns; None: it returns a new one."""
    if is_getitem(node):
        return None
    assert isinstance(node.target, OpOverload), f"{node} is no op"
    if Trait.VIEW in traits_of(node.target):
        return node.all_input_nodes[0]
    result = schema_of(node.target).returns[0].alias_info if schema_of(node.target).returns else None
    if result is None:
        return None
    return next(given for given, info in _written(node) if info.before_set == result.before_set)


def _root(node: fx.Node, inside: set[fx.Node]) -> fx.Node:
    """The node that brought in the storage that `node` shows: born inside, or the first one outside."""
    while node in inside and (source := source_of(node)) is not None:
        node = source
    return node


def _written(node: fx.Node) -> list[tuple[fx.Node, Any]]:
    """The arguments that an op writes into, and what its schema says of them."""
    if not isinstance(node.target, OpOverload):
        return []
    schema = schema_of(node.target).arguments
    given = [(node.args[at] if at < len(node.args) else node.kwargs.get(a.name), a) for at, a in enumerate(schema)]
    return [
        (value, argument.alias_info)
        for value, argument in given
        if isinstance(value, fx.Node) and argument.alias_info is not None and argument.alias_info.is_write
    ]


def _is_scratch(half: Half, node: fx.Node, neighbours: Sequence[fx.Node]) -> bool:
    """Whether a storage that these neighbours write into is never read again."""
    inside = set(neighbours)
    if node not in {_root(given, inside) for other in neighbours for given, _ in _written(other)}:
        return False
    looks = half.looks_at[half.storage_of[node]]
    users = {user for look in looks for user in look.users}
    return all(look.op != "placeholder" for look in looks) and all(u in inside or u < neighbours[0] for u in users)
