"""A joint graph made ready to run in parts.

Enters: a joint graph as it was traced (not tidied). Leaves: a copy in two clean phases whose results are the same. The
one idea: what does not depend on samples must not seem to. Random numbers are drawn into tensors made from constants,
not from a feature map of their shape, and how many targets count is known before any sample is computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from vdnn.capture.copied_graph import copy_of
from vdnn.capture.nodes import arguments_of, is_op, op_of, set_value, tensor_of
from vdnn.capture.ops.traits import needs_of, traits_of
from vdnn.capture.tidy.eager_writes import draw_random_numbers_in_place
from vdnn.capture.tidy.two_phases import separate_phases
from vdnn.capture.tidy.unread import remove_detaches
from vdnn.compile.forms.calls import Caller
from vdnn.compile.forms.mean_losses import sum_instead_of_mean
from vdnn.ir import Need, Trait

aten = torch.ops.aten


@dataclass(frozen=True)
class PreparedJoint:
    """A copy of the joint graph, and the nodes of it that run on the whole batch before anything else."""

    joint: fx.GraphModule
    counting: frozenset[fx.Node]


def prepare(joint: fx.GraphModule) -> PreparedJoint:
    copy = copy_of(joint)
    remove_detaches(copy.graph)
    draw_random_numbers_in_place(copy.graph)
    _draw_into_constants(copy.graph)
    separate_phases(copy.graph)
    return PreparedJoint(copy, frozenset(sum_instead_of_mean(copy.graph)))


def _draw_into_constants(graph: fx.Graph) -> None:
    """A tensor of which a random op reads only the shape is replaced by an empty one of that shape."""
    caller = Caller(graph, graph)
    for node in list(graph.nodes):
        if node.target is aten.empty_like.default:
            empty = _empty(node, node, caller)
            set_value(empty, tensor_of(node))  # what it was: views of it are views of this tensor
            node.replace_all_uses_with(empty)
            graph.erase_node(node)
        elif is_op(node) and Trait.RANDOM in traits_of(node.target):
            for source in _read_for_their_shape(node):
                node.replace_input_with(source, _empty(source, node, caller))


def _read_for_their_shape(node: fx.Node) -> list[fx.Node]:
    arguments = arguments_of(node)
    shapes = [arguments[name] for name, need in needs_of(op_of(node), arguments).items() if need is Need.SHAPE]
    return [source for source in shapes if isinstance(source, fx.Node)]


def _empty(like: fx.Node, before: fx.Node, caller: Caller) -> fx.Node:
    tensor = tensor_of(like)
    assert tensor is not None, f"{like} has no shape"
    options: dict[str, Any] = {"dtype": tensor.dtype, "device": tensor.device}
    with before.graph.inserting_before(before):
        return caller.call(before, aten.empty_strided.default, list(tensor.shape), list(tensor.stride()), **options)
