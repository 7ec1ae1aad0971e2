"""A half with kernels in the place of some of its regions.

Enters: a half, and for some neighbours in it the region that was found there and a kernel that computes it. Leaves: a
program like the half's own, in which one call stands for each. The kernel is handed a list that it empties, as the
program itself is, so that nobody holds its inputs longer than it does.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from vdnn.capture.copied_graph import GraphWithoutCode
from vdnn.capture.nodes import value_of
from vdnn.capture.ops.traits import traits_of
from vdnn.compile.inductor.regions import Neighbours, Region, source_of
from vdnn.ir import Trait
from vdnn.rewrite.halves import Half

Compiled = Callable[[list[Any]], Sequence[torch.Tensor]]


def box(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """In a list that its reader empties, so that the caller holds nothing while a kernel runs."""
    return list(tensors)


@dataclass
class _Rewriter:
    """Copies a half node by node, with calls of kernels where regions were."""

    graph: fx.Graph = field(default_factory=fx.Graph)
    copies: dict[fx.Node, fx.Node] = field(default_factory=dict)

    def call(self, region: Region, compiled: Compiled) -> None:
        boxed = self.graph.call_function(box, tuple(self.copies[node] for node in region.inputs))
        results = self.graph.call_function(compiled, (boxed,))
        for at, node in enumerate(region.outputs):
            self.copies[node] = self.graph.call_function(operator.getitem, (results, at))

    def show(self, node: fx.Node) -> None:
        """What somebody outside reads of a region: a result, a storage that was written into, or a look at one."""
        if node in self.copies:
            return
        source = source_of(node)
        assert source is not None, f"{node} is read outside its region and was not returned"
        self.show(source)
        is_view = Trait.VIEW in traits_of(node.target)
        self.copies[node] = self.graph.node_copy(node, self.copies.__getitem__) if is_view else self.copies[source]


def with_kernels(half: Half, kernels: Sequence[tuple[Neighbours, Region, Compiled]]) -> fx.GraphModule:
    """The half, with neighbours computed by their kernel: where their last node was, when all it takes is there."""
    inside = {node for neighbours, _, _ in kernels for node in neighbours}
    ending = {neighbours[-1]: (neighbours, region, compiled) for neighbours, region, compiled in kernels}
    rewriter = _Rewriter()
    for node in half.module.graph.nodes:
        if node not in inside:
            rewriter.copies[node] = rewriter.graph.node_copy(node, rewriter.copies.__getitem__)
        if node in ending:
            neighbours, region, compiled = ending[node]
            rewriter.call(region, compiled)
            for shown in neighbours:
                if any(user not in neighbours for user in shown.users) and not _has_parts(shown):
                    rewriter.show(shown)
    return GraphWithoutCode(half.module, rewriter.graph)


def _has_parts(node: fx.Node) -> bool:
    """Returns several results, which getitems name."""
    return isinstance(value_of(node), (tuple, list))
