"""The gradients that enter a backward, and which of its results hang on which of them.

Enters: a joint graph. Leaves: its tangents in order, for each gradient a number with one bit per tangent, and the graph
without some of them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from vdnn.capture.copied_graph import copy_of
from vdnn.capture.nodes import count_forward_outputs, fake_mode_of, is_tangent, set_value, tensor_of, value_of
from vdnn.capture.ops.traits import traits_of
from vdnn.ir import Trait


def tangents_in(graph: fx.Graph) -> list[fx.Node]:
    return [node for node in graph.find_nodes(op="placeholder") if is_tangent(node)]


def tangents_behind(graph: fx.Graph) -> tuple[int, ...]:
    """For each gradient, in the order of the outputs; 0 where there is none."""
    behind = {node: 1 << number for number, node in enumerate(tangents_in(graph))}
    for node in graph.nodes:
        found = behind.get(node, 0)
        for read in node.all_input_nodes:
            found |= behind.get(read, 0)
        if found:
            behind[node] = found
    outputs: Any = graph.output_node().args[0]
    gradients = outputs[count_forward_outputs(graph) :]
    return tuple(behind.get(gradient, 0) if isinstance(gradient, fx.Node) else 0 for gradient in gradients)


def without_tangents(joint: fx.GraphModule, absent: int) -> fx.GraphModule | None:
    """The joint graph as autograd would have traced it had these tangents (one bit each) not been there: what hangs on
    them alone is gone, and of a sum with another gradient that one is left. None where an op takes both together, as
    the backward of a split does: eager mode has zeros there. Call it where ops are traced as kernels are."""
    module = copy_of(joint)
    graph = module.graph
    gone = {node for number, node in enumerate(tangents_in(graph)) if absent >> number & 1}
    there, renewed = set(tangents_in(graph)) - gone, set[fx.Node]()
    for node in list(graph.nodes):
        if node.op == "output" or node in gone:
            continue
        reads = node.all_input_nodes
        others = [read for read in reads if read in there]
        if gone.isdisjoint(reads):
            there |= {node} if others else set()
        elif not others:
            gone.add(node)
        elif node.target is torch.ops.aten.add.Tensor and not node.kwargs and _is_alike(others[0], node):
            node.replace_all_uses_with(others[0])
            graph.erase_node(node)
            renewed.add(others[0])
        else:
            return None
    _leave_out(graph, gone)
    return module if _renew(graph, renewed) else None


def _renew(graph: fx.Graph, renewed: set[fx.Node]) -> bool:
    """What hung on a sum hangs on the summand that is left, which may be laid out in another way: look at every op
    again. False where one cannot be called so, or would write."""
    mode = fake_mode_of(graph)
    for node in graph.nodes:
        if node.op != "call_function" or renewed.isdisjoint(node.all_input_nodes):
            continue
        if Trait.IN_PLACE in traits_of(node.target):
            return False
        args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), value_of)
        try:
            with mode:
                set_value(node, node.target(*args, **kwargs))
        except RuntimeError:
            return False
        renewed.add(node)
    return True


def _is_alike(one: fx.Node, other: fx.Node) -> bool:
    a, b = tensor_of(one), tensor_of(other)
    return a is not None and b is not None and (a.shape, a.dtype) == (b.shape, b.dtype)


def _leave_out(graph: fx.Graph, gone: set[fx.Node]) -> None:
    output = graph.output_node()
    results: Any = output.args[0]
    first = count_forward_outputs(graph)
    output.args = ((*results[:first], *(None if one in gone else one for one in results[first:])),)
    for node in reversed(graph.nodes):
        if node in gone:
            graph.erase_node(node)
