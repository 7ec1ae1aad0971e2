"""Means over the batch as sums, so that the parts of a batch can be added up.

Enters: a functional joint graph (changed in place). Leaves: the same numbers from `sum / count`, and the nodes that
count, which are to run on the whole batch. The one idea: a mean of parts is not a part of the mean, but a sum is a sum
of sums. How many targets count (cross entropy ignores some and weights classes) is known from the targets alone, before
any sample was computed; every part's gradient is divided by that total.

Cross entropy and means have the bits of PyTorch's own; losses that divide inside their backward may differ in the last.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from vdnn.capture.forms.calls import Caller
from vdnn.capture.forms.rows import dims_of
from vdnn.capture.forms.rules_of_layers import LOSSES
from vdnn.capture.information import op_name
from vdnn.capture.nodes import is_getitem, set_value, tensor_of, value_of
from vdnn.capture.traits import named_arguments

aten = torch.ops.aten

_MEAN, _SUM = 1, 2  # at::Reduction

_CROSS_ENTROPIES = ("nll_loss_forward", "nll_loss2d_forward")
_LOSS_BACKWARDS = frozenset(f"{name}_backward" for name in LOSSES)


def sum_instead_of_mean(graph: fx.Graph) -> set[fx.Node]:
    """Every loss and mean over the batch, as a sum. Returns the nodes that count targets."""
    caller, counting = Caller(graph, graph), set()
    for node in list(graph.nodes):
        name = op_name(node) if node.op == "call_function" else ""
        with graph.inserting_before(node):
            if name in _CROSS_ENTROPIES:
                counting |= _count_first(node, caller)
            elif name in LOSSES and _is_mean(node):
                _replace(node, _sum_over(node, caller, _largest(node)))
            elif name in _LOSS_BACKWARDS and _is_mean(node):
                _replace(node, _backward_of_sum(node, caller))
            elif name == "mean" and _is_over_first_dim(node):
                _replace(node, _sum_over(node, caller, _averaged(node)))
    return counting


def _is_mean(node: fx.Node) -> bool:
    return bool(_arguments(node)["reduction"] == _MEAN)


def _arguments(node: fx.Node) -> dict[str, Any]:
    return named_arguments(node.target, node.args, node.kwargs)  # type: ignore[arg-type]


def _replace(node: fx.Node, by: fx.Node) -> None:
    set_value(by, value_of(node))  # views of the one are views of the other
    node.replace_all_uses_with(by)
    node.graph.erase_node(node)


def _count_first(node: fx.Node, caller: Caller) -> set[fx.Node]:
    """Cross entropy: the total weight from the targets, then the sum of losses, then their quotient."""
    arguments = _arguments(node)
    total, counting = _total_weight(node, arguments, caller)
    reduction = _SUM if _is_mean(node) else arguments["reduction"]
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
    dtype = value_of(rows).dtype
    if weight is None:
        counted = caller.call(node, aten.ne.Scalar, target, ignored, name=f"{node.name}_counted")
        number = caller.call(node, aten.sum.default, counted)
        total = caller.call(node, aten._to_copy.default, number, dtype=dtype)
        return total, {counted, number, total}
    # The op itself on rows of zeros that take no memory: it adds weights up in an order of its own.
    zero = caller.call(node, aten.zeros.default, [], dtype=dtype, device=value_of(rows).device)
    zeros = caller.call(node, aten.expand.default, zero, list(value_of(rows).shape))
    weighed = caller.call(node, node.target, zeros, target, weight, _SUM, ignored, name=f"{node.name}_weighed")
    return caller.getitem(weighed, 1, node), {zero, zeros, weighed}


def _sum_over(node: fx.Node, caller: Caller, count: int) -> fx.Node:
    if op_name(node) == "mean":
        dims = _arguments(node).get("dim")
        options = {"dtype": dtype} if (dtype := _arguments(node).get("dtype")) is not None else {}
        if dims is None:
            total = caller.call(node, aten.sum.default, node.args[0], **options)
        else:
            keep = _arguments(node)["keepdim"]
            total = caller.call(node, aten.sum.dim_IntList, node.args[0], dims, keep, **options)
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
    names = [argument.name for argument in node.target._schema.arguments if not argument.kwarg_only]  # type: ignore[union-attr]
    arguments = _arguments(node)
    return [_SUM if name == "reduction" else arguments[name] for name in names]


def _other_options(node: fx.Node) -> dict[str, Any]:
    positional = [argument.name for argument in node.target._schema.arguments if not argument.kwarg_only]  # type: ignore[union-attr]
    return {name: value for name, value in node.kwargs.items() if name not in positional}


def _largest(node: fx.Node) -> int:
    """Elements of the loss before it is reduced: its arguments are broadcast against each other."""
    shapes = [tensor.shape for source in node.all_input_nodes if (tensor := tensor_of(source)) is not None]
    return int(torch.Size(torch.broadcast_shapes(*shapes)).numel())


def _is_over_first_dim(node: fx.Node) -> bool:
    """Where the batch is most often. A mean over another one runs whole."""
    tensor = tensor_of(node.args[0])  # type: ignore[arg-type]
    return tensor is not None and 0 in dims_of(_arguments(node).get("dim"), tensor.ndim)


def _averaged(node: fx.Node) -> int:
    tensor = tensor_of(node.args[0])  # type: ignore[arg-type]
    assert tensor is not None, f"{node} averages something that is no tensor"
    return int(torch.Size([tensor.shape[dim] for dim in dims_of(_arguments(node).get("dim"), tensor.ndim)]).numel())
