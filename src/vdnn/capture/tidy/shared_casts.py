"""A weight that autocast uses several times is cast once, and its gradients are added in the narrow type, as in eager.

Enters: a joint graph. Leaves: the same graph with one cast of each such weight. Eager autocast remembers what it cast;
a tracer casts anew at every use, and then adds the gradients after they were widened, with other bits. They arrive in
the same order either way: each use's backward comes before those of earlier uses. A weight that is used without a cast
too stays as it was traced, and `require_exact` refuses it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from vdnn.capture.nodes import copy_meta, set_value, value_of

aten = torch.ops.aten

NARROW = (torch.bfloat16, torch.float16)


def casts_of(parameter: fx.Node) -> list[fx.Node]:
    """Those to a narrow type."""
    return [u for u in parameter.users if u.target is aten._to_copy.default and u.kwargs.get("dtype") in NARROW]


def cast_once(graph: fx.Graph, parameter: fx.Node, gradient: fx.Node) -> None:
    """Where all uses of `parameter` are casts to one type, and `gradient` is the sum of what comes back from them."""
    casts = casts_of(parameter)
    if len(casts) < 2 or len(casts) != len(parameter.users) or len({str(cast.kwargs) for cast in casts}) > 1:
        return
    widened = _widened(gradient)
    if widened is None or len(widened) != len(casts):
        return
    for again in casts[1:]:
        again.replace_all_uses_with(casts[0])
        graph.erase_node(again)
    total = _in_narrow(graph, gradient)
    with graph.inserting_before(gradient):
        whole = graph.call_function(aten._to_copy.default, (total,), dict(widened[0].kwargs))
    copy_meta(gradient, whole)
    set_value(whole, value_of(gradient))
    gradient.replace_all_uses_with(whole)
    _erase_sum(graph, gradient)


def _is_sum(node: Any) -> bool:
    return isinstance(node, fx.Node) and node.target is aten.add.Tensor and not node.kwargs and len(node.args) == 2


def _widened(node: Any, is_last: bool = True) -> list[fx.Node] | None:
    """The casts back to the wide type that are added up, if that is all there is."""
    if not isinstance(node, fx.Node) or len(node.users) != 1:
        return None
    if _is_sum(node):
        left, right = (_widened(term, False) for term in node.args)
        return None if left is None or right is None else left + right
    source = node.args[0] if node.target is aten._to_copy.default else None
    is_narrow = isinstance(source, fx.Node) and value_of(source).dtype in NARROW
    return [node] if is_narrow and not is_last else None


def _in_narrow(graph: fx.Graph, node: fx.Node) -> fx.Node:
    if not _is_sum(node):
        (narrow,) = node.all_input_nodes
        return narrow
    terms = [_in_narrow(graph, term) for term in node.all_input_nodes]
    with graph.inserting_before(node):
        added = graph.call_function(aten.add.Tensor, tuple(terms))
    copy_meta(node, added)
    set_value(added, value_of(terms[0]) + value_of(terms[1]))
    return added


def _erase_sum(graph: fx.Graph, node: fx.Node) -> None:
    terms = node.all_input_nodes if _is_sum(node) else []
    graph.erase_node(node)
    for term in terms:
        _erase_sum(graph, term)
