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
from vdnn.known_ops import KNOWN_NAMESPACES, known
from vdnn.known_ops.known_op import Fill, Linear, LinearIfPut
from vdnn.torch_private import OpOverload

_SHORT_FLOATS = frozenset({torch.float16, torch.bfloat16})


def is_linear_in_tangent(graph: fx.Graph) -> bool:
    """Whether all gradients are linear in the tangent, in whole precision."""
    moving: set[Any] = {node for node in graph.find_nodes(op="placeholder") if is_tangent(node)}
    for node in graph.nodes:
        if node.op != "call_function" or not any(source in moving for source in node.all_input_nodes):
            continue
        if known(op_name(node)).linear is Linear.CONSTANT:
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
    return all(dtype.is_floating_point and dtype not in _SHORT_FLOATS for dtype in dtypes)


def _is_linear(node: fx.Node, moving: set[Any]) -> bool:
    if not isinstance(node.target, OpOverload) or node.target.namespace not in KNOWN_NAMESPACES:
        return False  # its name may mean anything
    name, arguments, first = op_name(node).rstrip("_"), arguments_of(node), node.args[0]
    num_moving = _count_moving(node, moving)
    alone = num_moving == 1 and first in moving
    if "_backward" in name:
        return alone
    how = known(name).linear
    if isinstance(how, LinearIfPut):
        return num_moving == 1 + (first in moving) and _scales(first, moving) and node.args[how.position] in moving
    match how:
        case Linear.IN_ITS_TENSOR:
            return alone and not (name == "view" and "dtype" in arguments)
        case Linear.PRODUCT:
            return num_moving == 1
        case Linear.ADDED_PRODUCT:
            return num_moving == 2 and first in moving
        case Linear.QUOTIENT:
            return alone and arguments.get("rounding_mode") is None
        case Linear.SUM:
            return all(_scales(term, moving) for term in node.args[:2])
        case Linear.JOIN:
            return all(_scales(part, moving) for part in arguments["tensors"])
        case Linear.CHOICE:
            return first not in moving and all(_scales(branch, moving) for branch in node.args[1:])
        case Linear.MASKED:
            return alone and _is_zero(node.args[2])
        case Linear.PADDED:
            return alone and _is_zero(arguments["value"])
        case Linear.CONVOLUTION:
            return num_moving == 1 and arguments["bias"] is None
        case _:
            return False


def _count_moving(node: fx.Node, moving: set[Any]) -> int:
    """How many of its arguments depend on the tangent; one that is passed twice counts twice."""
    passed: list[fx.Node] = []
    fx.map_arg((node.args, node.kwargs), passed.append)
    return sum(source in moving for source in passed)


def _scales(value: Any, moving: set[Any]) -> bool:
    return _is_zero(value) or (isinstance(value, fx.Node) and value in moving)


def _is_zero(value: Any) -> bool:
    if isinstance(value, fx.Node):
        fill = known(op_name(value)).fill
        return fill is Fill.ZEROS or (fill is Fill.A_NUMBER and _is_zero(_fill(value)))
    return isinstance(value, int | float) and value == 0


def _fill(node: fx.Node) -> Any:
    arguments = arguments_of(node)
    return next((arguments[name] for name in ("fill_value", "s") if name in arguments), None)
