"""A joint graph copied, so that who changes a graph changes its own.

Enters: a joint graph. Leaves: a graph of the same calls in the same order under the same names, over the same constants
and the same fake tensors. The one idea: nodes are small and tensors are shared, so a copy is linear in the number of
nodes, and 64 thousand of them take about a second. No code is generated for it: what runs is cut out of a copy later,
and code for 10^4 layers takes seconds.
"""

from __future__ import annotations

from typing import Any

from torch import fx


class GraphWithoutCode(fx.GraphModule):
    """A graph and its constants, to be read and changed. It cannot be called."""

    def recompile(self) -> Any:
        """Nothing: `fx.GraphModule` generates code here."""


def copy_of(joint: fx.GraphModule) -> fx.GraphModule:
    """The same graph over the same constants. Nodes are new, and so are their tables of metadata."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in joint.graph.nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    return GraphWithoutCode(joint, graph)
