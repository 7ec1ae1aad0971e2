"""From a graph to a Python function that lets go of every tensor at its last use.

Enters: a graph module. Leaves: a function of one list, which it empties. With ordinary arguments the caller's frame
would keep every saved tensor alive through the whole backward pass; a list that the function empties keeps none.
`marked` is the same program with a call before every instruction, for a run that is watched.
"""

from __future__ import annotations

from functools import partial

from torch import fx

from vdnn.capture.nodes import tensors_of
from vdnn.rewrite.halves import Half, boxed_module
from vdnn.runtime.executor import Boxed, Program
from vdnn.runtime.running_step import mark, saw
from vdnn.runtime.traced_layouts import TracedLayout, expect
from vdnn.torch_private import HigherOrderOperator


def program(half: Half) -> Program:
    constants = (getattr(half.module, str(node.target), None) for node in half.module.graph.find_nodes(op="get_attr"))
    # A tracker of tensors has no rule for ops that run whole programs, or that are ordered by tokens.
    is_watchable = not any(isinstance(node.target, HigherOrderOperator) for node in half.module.graph.nodes)
    return Program(half.module.forward, partial(marked, half), tuple(constants), is_watchable)


def boxed(module: fx.GraphModule) -> Boxed:
    """Such a function of a module that was made for ordinary arguments, or that has no code yet."""
    return boxed_module(module, module.graph).forward


def marked(half: Half, *, checked: bool = True) -> Boxed:
    """The same nodes in the same order, each instruction announced before it runs and, if `checked`, each op's result
    looked at after."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in half.module.graph.nodes:
        if node in half.position_of:
            graph.call_function(mark, (half.position_of[node],))
        copies[node] = graph.node_copy(node, copies.__getitem__)
        if checked and node in half.position_of and any(layout is not None for layout in _layouts(node)):
            graph.call_function(expect, (copies[node], _layouts(node), str(node.target)))
            graph.call_function(saw, (copies[node],))
    return boxed_module(half.module, graph).forward


def _layouts(node: fx.Node) -> tuple[TracedLayout | None, ...]:
    return tuple(
        None if tensor is None else (tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype)
        for tensor in tensors_of(node)
    )
