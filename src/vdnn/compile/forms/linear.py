"""Is the gradient linear in the gradient that arrives? Only then may it be computed before that is known.

Enters: a joint graph with one tangent. Leaves: yes or no. Derivatives that PyTorch wrote are linear in it, but a custom
backward or a hook may clip, round, square or add, and short floats lose what a scaled loss was to save. The one idea:
follow what depends on the tangent, op by op, and stop at the first that is not known to be linear in it; in the end
every gradient must depend on it, or be zero.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from vdnn.capture.nodes import arguments_of, count_forward_outputs, is_getitem, is_tangent, tensors_of
from vdnn.capture.ops.information import op_name
from vdnn.capture.ops.traits import KNOWN_NAMESPACES
from vdnn.torch_private import OpOverload

_SHORT = frozenset({torch.float16, torch.bfloat16})

_CONSTANT = frozenset(
    {
        "empty_like",
        "zeros_like",
        "ones_like",
        "full_like",
        "new_zeros",
        "new_ones",
        "new_full",
        "new_empty",
    }
)
"""Of a tensor they take the shape."""

_MOVED = frozenset(
    {
        "view",
        "_unsafe_view",
        "reshape",
        "expand",
        "permute",
        "transpose",
        "t",
        "squeeze",
        "unsqueeze",
        "slice",
        "select",
        "split",
        "split_with_sizes",
        "unbind",
        "alias",
        "clone",
        "detach",
        "contiguous",
        "neg",
        "sum",
        "mean",
        "narrow",
        "diagonal",
        "as_strided",
        "flip",
        "roll",
        "index_select",
        "gather",
        "cumsum",
        "tril",
        "triu",
        "unfold",
        "_to_copy",
    }
)
"""Linear in their one tensor."""

_PRODUCTS = frozenset({"mul", "mm", "bmm", "matmul", "dot", "mv"})
"""Linear as long as only one factor depends on the tangent."""

_PRODUCTS_ADDED = frozenset({"addmm", "baddbmm", "addmv"})

_PUT = {"index_put": 2, "_unsafe_index_put": 2, "scatter_add": 3, "index_add": 3}
"""Linear if what is put there depends on the tangent, and what it is put into does or is zero. The position of the
former; the latter comes first."""

_ZEROS = frozenset({"zeros", "zeros_like", "new_zeros"})
_FILLED = frozenset({"full", "full_like", "new_full", "scalar_tensor"})


def is_linear_in_tangent(graph: fx.Graph) -> bool:
    """Whether all gradients are linear in the tangent, in whole precision."""
    moving: set[Any] = {node for node in graph.find_nodes(op="placeholder") if is_tangent(node)}
    for node in graph.nodes:
        if node.op != "call_function" or not any(source in moving for source in node.all_input_nodes):
            continue
        if op_name(node) in _CONSTANT:
            continue
        if not is_getitem(node) and not (_is_whole(node) and _is_linear(node, moving)):
            return False
        moving.add(node)
    outputs: Any = graph.output_node().args[0]
    gradients = outputs[count_forward_outputs(graph) :]
    return all(gradient is None or gradient in moving or _is_zero(gradient) for gradient in gradients)


def _is_whole(node: fx.Node) -> bool:
    """Floats of full width: rounding to integers or to short floats is not linear."""
    dtypes = [tensor.dtype for tensor in tensors_of(node) if tensor is not None]
    return all(dtype.is_floating_point and dtype not in _SHORT for dtype in dtypes)


def _is_linear(node: fx.Node, moving: set[Any]) -> bool:
    if not isinstance(node.target, OpOverload) or node.target.namespace not in KNOWN_NAMESPACES:
        return False  # its name may mean anything
    name, arguments, first = op_name(node).rstrip("_"), arguments_of(node), node.args[0]
    num_moving = _count_moving(node, moving)
    alone = num_moving == 1 and first in moving
    if "_backward" in name:
        return alone
    if name == "div":
        return alone and arguments.get("rounding_mode") is None
    if name == "masked_fill":
        return alone and _is_zero(node.args[2])
    if name == "constant_pad_nd":
        return alone and _is_zero(arguments["value"])
    if name == "where":
        return first not in moving and all(_scales(branch, moving) for branch in node.args[1:])
    if name == "convolution":
        return num_moving == 1 and arguments["bias"] is None
    if name in _PRODUCTS:
        return num_moving == 1
    if name in _PRODUCTS_ADDED:
        return num_moving == 2 and first in moving
    if name in _PUT:
        return num_moving == 1 + (first in moving) and _scales(first, moving) and node.args[_PUT[name]] in moving
    if name in ("add", "sub"):
        return all(_scales(term, moving) for term in node.args[:2])
    if name in ("cat", "stack"):
        return all(_scales(part, moving) for part in arguments["tensors"])
    return name in _MOVED and alone and not (name == "view" and "dtype" in arguments)


def _count_moving(node: fx.Node, moving: set[Any]) -> int:
    """How many of its arguments depend on the tangent; one that is passed twice counts twice."""
    passed: list[fx.Node] = []
    fx.map_arg((node.args, node.kwargs), passed.append)
    return sum(source in moving for source in passed)


def _scales(value: Any, moving: set[Any]) -> bool:
    return _is_zero(value) or (isinstance(value, fx.Node) and value in moving)


def _is_zero(value: Any) -> bool:
    if isinstance(value, fx.Node):
        name = op_name(value)
        return name in _ZEROS or (name in _FILLED and _is_zero(_fill(value)))
    return isinstance(value, int | float) and value == 0


def _fill(node: fx.Node) -> Any:
    arguments = arguments_of(node)
    return next((arguments[name] for name in ("fill_value", "s") if name in arguments), None)
