"""The backward of a convolution as two calls: first the gradients of its weights, then that of its input.

Enters: a joint graph. Leaves: a copy of it in which no call makes both. The one idea: one call holds the input x, the
gradient gy and the result gx at once, three maps of the largest layers. The weights' gradient reads x and gy, the
input's reads gy and, of x, only the shape: after the first call x can go, and two maps are the most that a call holds.

PyTorch computes the two with separate kernels in any case, so the bits are those of the single call
(`tests/cpu/test_forms_split.py`). Of other backward ops none was found worth it: those of norms and of attention read
the same maps for each of their results.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from vdnn.capture.copied_graph import copy_of
from vdnn.capture.nodes import copy_meta

aten = torch.ops.aten

_MASK = -1  # the position of `output_mask`


def split_convolution_backwards(joint: fx.GraphModule) -> fx.GraphModule:
    copy = copy_of(joint)
    for node in _asked_for_both(copy.graph):
        _split(node)
    return copy


def splits_any(graph: fx.Graph) -> bool:
    return bool(_asked_for_both(graph))


def _asked_for_both(graph: fx.Graph) -> list[fx.Node]:
    """Convolution backwards that are asked for the gradients of both input and weights."""
    found = graph.find_nodes(op="call_function", target=aten.convolution_backward.default)
    return [node for node in found if all(node.args[_MASK][:2])]


def _split(node: fx.Node) -> None:
    wants_bias = node.args[_MASK][2]  # type: ignore[index]
    with node.graph.inserting_before(node):
        weights = _part(node, "weights", [False, True, wants_bias])
        results = {**weights, **_part(node, "input", [True, False, False])}
    for user in list(node.users):
        user.replace_all_uses_with(results[user.args[1]])
        node.graph.erase_node(user)
    node.graph.erase_node(node)


def _part(node: fx.Node, name: str, mask: list[Any]) -> dict[Any, fx.Node]:
    """A call for some of the results of `node`, and those that someone takes, by position. They are the same fake
    tensors as before, so that views of them are theirs."""
    call = _like(node, node.target, (*node.args[:_MASK], mask), f"{node.name}_{name}")
    taken = {user.args[1]: user for user in node.users}
    return {
        position: _like(taken[position], operator.getitem, (call, position))
        for position, wanted in enumerate(mask)
        if wanted and position in taken
    }


def _like(node: fx.Node, target: Any, args: tuple[Any, ...], name: str | None = None) -> fx.Node:
    """A call that returns what `node` returns."""
    call = node.graph.create_node("call_function", target, args, {}, name)
    copy_meta(node, call)
    return call
