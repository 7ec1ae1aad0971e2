"""Where the samples are in every value of a joint graph, and which of its ops may run on a part of them.

Enters: a joint graph in execution order, and the batch dims of its inputs. Leaves: for every node with rows of samples
those `Rows`, and for every op that may run in parts its `Split`. The one idea: one walk in execution order, with a rule
per op. Ops without a rule run on the whole batch; of what they return the rows are guessed from its shape, which is
safe, because a whole value may be cut anywhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import fx

from vdnn.capture.inputs import describe_inputs
from vdnn.capture.lower import InputInfo
from vdnn.capture.nodes import (
    arguments_of,
    descriptor_of,
    is_getitem,
    is_op,
    is_tangent,
    is_view,
    output_descriptors,
    shape_of,
    tensor_of,
    tensors_of,
)
from vdnn.capture.ops.information import op_name
from vdnn.capture.ops.traits import traits_of
from vdnn.compile.forms import rules_of_layers, rules_of_math, rules_of_views  # noqa: F401 - they fill CHUNK_RULES
from vdnn.compile.forms.rows import CHUNK_RULES, ChunkRule, MixesSamples, Result, Rows, Split, TracedCall
from vdnn.ir import Role, Trait
from vdnn.known_ops import KNOWN_OPS
from vdnn.torch_private import OpOverload

RULES = {op.name: CHUNK_RULES[op.chunks] for op in KNOWN_OPS.values() if op.chunks}
"""By name of the op."""

_WHOLE_TRAITS = frozenset({Trait.IN_PLACE, Trait.MUST_KEEP, Trait.COLLECTIVE, Trait.UPDATES})


def batch_of(graph: fx.Graph, plain: Sequence[InputInfo]) -> int:
    """The number of samples: the first size that most of the model's arguments share. 0: there is none."""
    sizes = Counter(tensor.shape[0] for node in _arguments(graph, plain) if (tensor := tensor_of(node)) is not None)
    return int(sizes.most_common(1)[0][0]) if sizes else 0


def _arguments(graph: fx.Graph, plain: Sequence[InputInfo]) -> Iterable[fx.Node]:
    """Inputs that are neither parameters nor buffers nor gradients, and have a dim."""
    for node, info in describe_inputs(graph, plain).items():
        tensor = tensor_of(node)
        if info.role is Role.INPUT and not is_tangent(node) and tensor is not None and tensor.ndim:
            yield node


@dataclass
class Analysis:
    """`rows` of every value that has samples, `splits` of every op that may run on some. `barred` ops run whole."""

    graph: fx.Graph
    batch: int
    plain: Sequence[InputInfo] = ()
    barred: set[fx.Node] = field(default_factory=set)
    rows: dict[fx.Node, Rows] = field(default_factory=dict, init=False)
    splits: dict[fx.Node, Split] = field(default_factory=dict, init=False)
    results: dict[fx.Node, tuple[Result, ...]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        for node in _arguments(self.graph, self.plain):
            if shape_of(node)[0] == self.batch:
                self.rows[node] = Rows(0)
        waiting = [node for node in self.graph.find_nodes(op="placeholder") if is_tangent(node)]
        for node in self.graph.nodes:
            if waiting and not set(node.all_input_nodes).isdisjoint(waiting):
                self._meet_tangents(waiting)
                waiting = []
            self._meet(node)

    def _meet_tangents(self, tangents: Sequence[fx.Node]) -> None:
        """A gradient that arrives has its samples where the output has them."""
        output = self.graph.output_node()
        outputs: Any = output.args[0]
        described = list(zip(output_descriptors(output), outputs, strict=False))
        for tangent in tangents:
            of = getattr(descriptor_of(tangent), "output", None)
            found = next((node for descriptor, node in described if descriptor == of), None)
            if found in self.rows and shape_of(found) == shape_of(tangent):
                self.rows[tangent] = self.rows[found]

    def _meet(self, node: fx.Node) -> None:
        if is_getitem(node):
            source: Any
            position: Any
            source, position = node.args
            result = self.results[source][position] if source in self.results else None
            if isinstance(result, Rows):
                self.rows[node] = result
        elif is_op(node) and any(source in self.rows for source in _read(node)):
            split = self._split(node)
            if split is not None:
                self.splits[node] = split
            self.results[node] = split.results if split is not None else self._guessed(node)
            first = self.results[node][0]
            if tensor_of(node) is not None and isinstance(first, Rows):
                self.rows[node] = first

    def _split(self, node: fx.Node) -> Split | None:
        if node in self.barred or _runs_whole(node):
            return None
        rule = rule_of(node)
        try:
            split = rule(TracedCall(node, self.rows, self.batch)) if rule is not None else None
        except MixesSamples:
            return None
        return split if split is not None and self._is_possible(node, split) else None

    def _is_possible(self, node: fx.Node, split: Split) -> bool:
        tensors = tensors_of(node)
        return len(tensors) == len(split.results) and all(
            not isinstance(result, Rows) or (tensor is not None and tensor.shape[result.dim] == result.of(self.batch))
            for tensor, result in zip(tensors, split.results, strict=True)
        )

    def _guessed(self, node: fx.Node) -> tuple[Result, ...]:
        """A result that has the shape of an argument has its rows."""
        shapes = {shape_of(source): self.rows[source] for source in _read(node) if source in self.rows}
        return tuple(None if tensor is None else shapes.get(tensor.shape) for tensor in tensors_of(node))

    @cached_property
    def views(self) -> frozenset[fx.Node]:
        """Nodes that compute nothing: written where they are read, in rows or whole."""
        return frozenset(node for node in self.graph.nodes if is_view(node))

    @cached_property
    def ops(self) -> tuple[fx.Node, ...]:
        """Nodes that compute, in execution order."""
        return tuple(node for node in self.graph.nodes if is_op(node) and node not in self.views)

    def is_summed(self, node: fx.Node) -> bool:
        """A value that the parts of its op add up to."""
        source: Any
        position: Any
        source, position = node.args if is_getitem(node) else (node, 0)
        split = self.splits.get(source)
        return split is not None and not isinstance(split.results[position], Rows)


def _read(node: fx.Node) -> list[fx.Node]:
    return [source for source in node.all_input_nodes if tensor_of(source) is not None]


def _runs_whole(node: fx.Node) -> bool:
    """Random numbers are drawn for the whole batch at once, so that they are those of a step in one piece. Attention
    without dropout draws none."""
    traits = traits_of(node.target)
    if Trait.RANDOM in traits and isinstance(node.target, OpOverload):
        draws = arguments_of(node).get("dropout_p") != 0.0
        return draws or bool(_WHOLE_TRAITS & traits)
    return bool(_WHOLE_TRAITS & traits)


def rule_of(node: fx.Node) -> ChunkRule | None:
    rule = RULES.get(op_name(node))
    if rule is None and isinstance(node.target, OpOverload) and torch.Tag.pointwise in node.target.tags:
        return rules_of_math.elementwise
    return rule
