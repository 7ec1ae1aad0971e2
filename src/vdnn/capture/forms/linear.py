"""Is the gradient linear in the gradient that arrives? Only then may it be computed before that is known.

Enters: a joint graph with one tangent. Leaves: yes or no. Derivatives that PyTorch wrote are linear in it, but a custom
backward or a hook may clip or add, and short floats lose what a scaled loss was to save. The one idea: follow what
depends on the tangent, op by op, and stop at the first that is not known to be linear in it.
"""

from __future__ import annotations

import torch
from torch import fx

from vdnn.capture.information import op_name
from vdnn.capture.nodes import is_getitem, is_tangent, tensors_of

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
        "constant_pad_nd",
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

_TOGETHER = frozenset(
    {
        "add",
        "sub",
        "cat",
        "stack",
    }
)
"""Linear if all that they combine depends on the tangent: a constant added would not scale with it."""

_PRODUCTS = frozenset(
    {
        "mul",
        "mm",
        "bmm",
        "matmul",
        "dot",
        "mv",
        "convolution",
    }
)
"""Linear as long as only one factor depends on the tangent."""

_PRODUCTS_ADDED = frozenset(
    {
        "addmm",
        "baddbmm",
        "addmv",
    }
)


def is_linear_in_tangent(graph: fx.Graph) -> bool:
    """Whether everything between the tangent and the gradients is linear in the tangent, in whole precision."""
    moving = {node for node in graph.find_nodes(op="placeholder") if is_tangent(node)}
    for node in graph.nodes:
        if node.op != "call_function" or not any(source in moving for source in node.all_input_nodes):
            continue
        if op_name(node) in _CONSTANT:
            continue
        if any(tensor is not None and tensor.dtype in _SHORT for tensor in tensors_of(node)):
            return False
        if not is_getitem(node) and not _is_linear(node, moving):
            return False
        moving.add(node)
    return True


def _is_linear(node: fx.Node, moving: set[fx.Node]) -> bool:
    name = op_name(node).rstrip("_")
    sources = node.all_input_nodes
    dependent = [source for source in sources if source in moving]
    if "_backward" in name:
        return dependent == [node.args[0]]
    if name == "div":
        return dependent == [node.args[0]] and len(node.args) == 2
    if name == "masked_fill":
        return dependent == [node.args[0]] and isinstance(node.args[2], int | float) and node.args[2] == 0
    if name in _PRODUCTS:
        return len(dependent) == 1
    if name in _PRODUCTS_ADDED:
        return node.args[0] in moving and len(dependent) == 2
    if name in _TOGETHER:
        return dependent == sources and not any(isinstance(other, int | float) for other in node.args[:2])
    return name in _MOVED and len(dependent) == 1
