"""Means over the batch as sums, so that the parts of a batch can be added up.

Enters: a functional joint graph (changed in place). Leaves: the same numbers from `sum / count`, and the nodes that
count, which are to run on the whole batch. The one idea: a mean of parts is not a part of the mean, but a sum is a sum
of sums. How many targets count (cross entropy ignores some and weights classes) is known from the targets alone, before
any sample was computed; every part's gradient is divided by that total.

Means, and cross entropy without class weights, have the bits of PyTorch's own; losses that divide inside their backward
may differ in the last.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from vdnn.capture.nodes import arguments_of, is_getitem, op_of, set_value, shape_of, tensor_of, value_of
from vdnn.capture.ops.information import op_name
from vdnn.compile.forms.calls import Caller
from vdnn.compile.forms.rows import dims_of
from vdnn.compile.forms.rules_of_layers import LossReduction
from vdnn.known_ops import names_of
from vdnn.torch_private import schema_of

aten = torch.ops.aten

CROSS_ENTROPIES = names_of(lambda op: op.chunks == "nll_loss")
_LOSSES = names_of(lambda op: op.chunks == "loss")
_LOSS_BACKWARDS = names_of(lambda op: op.chunks == "loss_backward")


def sum_instead_of_mean(graph: fx.Graph) -> set[fx.Node]:
    """Every loss and mean over the batch, as a sum. Returns the nodes that count targets."""
    caller, counting = Caller(graph, graph), set()
    for node in list(graph.nodes):
        name = op_name(node) if node.op == "call_function" else ""
        with graph.inserting_before(node):
            if name in CROSS_ENTROPIES:
                counting |= _count_first(node, caller)
            elif name in _LOSSES and _is_mean(node):
                _replace(node, _sum_over(node, caller, _largest(node)))
            elif name in _LOSS_BACKWARDS and _is_mean(node):
                _replace(node, _backward_of_sum(node, caller))
            elif name == "mean" and _is_over_first_dim(node):
                _replace(node, _sum_over(node, caller, _averaged(node)))
    return counting


def _is_mean(node: fx.Node) -> bool:
    return bool(arguments_of(node)["reduction"] == LossReduction.MEAN)


def _replace(node: fx.Node, by: fx.Node) -> None:
    assert shape_of(by) == shape_of(node), f"{by} has another shape than {node}, whose place it takes"
    set_value(by, value_of(node))  # views of the one are views of the other
    node.replace_all_uses_with(by)
    node.graph.erase_node(node)


def _count_first(node: fx.Node, caller: Caller) -> set[fx.Node]:
    """Cross entropy: the total weight from the targets, then the sum of losses, then their quotient."""
    arguments = arguments_of(node)
    total, counting = _total_weight(node, arguments, caller)
    reduction = int(LossReduction.SUM) if _is_mean(node) else arguments["reduction"]
    values = [*node.args[:3], reduction, arguments["ignore_index"]]
    losses = caller.call(node, node.target, *values, name=f"{node.name}_sum")
    for user in [user for user in list(node.users) if is_getitem(user)]:
        result = total
        if user.args[1] == 0:
            result = caller.getitem(losses, 0, user)
            result = caller.call(user, aten.div.Tensor, result, total) if _is_mean(node) else result
        _replace(user, result)
    node.graph.erase_node(node)
    return counting


def _total_weight(node: fx.Node, arguments: dict[str, Any], caller: Caller) -> tuple[fx.Node, set[fx.Node]]:
    rows, target, weight, ignored = (arguments[name] for name in ("self", "target", "weight", "ignore_index"))
    counted = caller.call(node, aten.ne.Scalar, target, ignored, name=f"{node.name}_counted")
    if weight is None:
        number = caller.call(node, aten.sum.default, counted)
        total = caller.call(node, aten._to_copy.default, number, dtype=value_of(rows).dtype)
        return total, {counted, number, total}
    known = caller.call(node, aten.mul.Tensor, target, counted)  # an ignored target need not be the number of a class
    weights = caller.call(node, aten.index.Tensor, weight, [known])
    weighed = caller.call(node, aten.mul.Tensor, weights, counted, name=f"{node.name}_weighed")
    total = caller.call(node, aten.sum.default, weighed)
    return total, {counted, known, weights, weighed, total}


def _sum_over(node: fx.Node, caller: Caller, count: int) -> fx.Node:
    if op_name(node) == "mean":
        options = {"dtype": dtype} if (dtype := arguments_of(node).get("dtype")) is not None else {}
        if "dim" in arguments_of(node):
            dims, keep = _averaged_dims(node), arguments_of(node)["keepdim"]
            total = caller.call(node, aten.sum.dim_IntList, node.args[0], dims, keep, **options)
        else:
            total = caller.call(node, aten.sum.default, node.args[0], **options)
    else:
        total = caller.call(node, node.target, *_with_sum(node), **_other_options(node))
    return caller.call(node, aten.div.Tensor, total, count)


def _backward_of_sum(node: fx.Node, caller: Caller) -> fx.Node:
    """The gradient that arrives is divided once, not every element by every part."""
    gradient, *others = _with_sum(node)
    share = caller.call(node, aten.div.Tensor, gradient, _largest(node))
    return caller.call(node, node.target, share, *others, **_other_options(node))


def _with_sum(node: fx.Node) -> list[Any]:
    """The positional arguments with another reduction."""
    arguments = arguments_of(node)
    return [int(LossReduction.SUM) if name == "reduction" else arguments[name] for name in _positional(node)]


def _other_options(node: fx.Node) -> dict[str, Any]:
    positional = _positional(node)
    return {name: value for name, value in node.kwargs.items() if name not in positional}


def _positional(node: fx.Node) -> list[str]:
    return [argument.name for argument in schema_of(op_of(node)).arguments if not argument.kwarg_only]


def _largest(node: fx.Node) -> int:
    """Elements of the loss before it is reduced: its arguments are broadcast against each other."""
    shapes = [tensor.shape for source in node.all_input_nodes if (tensor := tensor_of(source)) is not None]
    return int(torch.Size(torch.broadcast_shapes(*shapes)).numel())


def _is_over_first_dim(node: fx.Node) -> bool:
    """Where the batch is most often. A mean over another one runs whole."""
    return 0 in _averaged_dims(node)


def _averaged(node: fx.Node) -> int:
    shape = shape_of(node.all_input_nodes[0])
    return int(torch.Size([shape[dim] for dim in _averaged_dims(node)]).numel())


def _averaged_dims(node: fx.Node) -> list[int]:
    return dims_of(arguments_of(node).get("dim"), len(shape_of(node.all_input_nodes[0])))
