"""From a graph to a Python function that lets go of every tensor at its last use.

Enters: a graph module. Leaves: a function of one list, which it empties. With ordinary arguments the caller's frame
would keep every saved tensor alive through the whole backward pass; a list that the function empties keeps none.
`marked` is the same program with a call before every instruction, for a run that is watched.
"""

from __future__ import annotations

from functools import partial

from torch import fx
from torch.fx.graph import _BoxedCodeGen

from vdnn.rewrite.halves import Half
from vdnn.runtime.executor import Boxed, Program
from vdnn.runtime.steps import mark


def program(half: Half) -> Program:
    constants = (getattr(half.module, str(node.target), None) for node in half.module.graph.find_nodes(op="get_attr"))
    return Program(boxed(half.module), partial(marked, half), tuple(constants))


def boxed(module: fx.GraphModule) -> Boxed:
    module.graph.set_codegen(_BoxedCodeGen())
    module.recompile()
    return module.forward


def marked(half: Half) -> Boxed:
    """The same nodes in the same order, each instruction announced before it runs."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in half.module.graph.nodes:
        if node in half.position_of:
            graph.call_function(mark, (half.position_of[node],))
        copies[node] = graph.node_copy(node, copies.__getitem__)
    return boxed(fx.GraphModule(half.module, graph))
