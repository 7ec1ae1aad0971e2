"""What exactly backward takes of what forward left: the details behind a partial need, and who can read an encoding.

Enters: nodes of a tidy joint graph. Leaves: for each argument of a node its `Information` and whether the node has a
form that reads it encoded; for each storage the alphabet of its elements. This is Gist's insight (ISCA 2018, section 3)
made general: not "ReLU before a pool", but every op whose backward asks a yes-or-no question or for a place in a
window, and every storage that holds only two numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any

import torch
from torch import fx

from vdnn.capture.nodes import arguments_of, tensor_of
from vdnn.capture.ops.overloads import base_name
from vdnn.capture.ops.traits import needs_of
from vdnn.ir import Detail, Information, Need
from vdnn.known_ops import known
from vdnn.known_ops.known_op import Arguments, Fill, FromBits, FromWindowIndices
from vdnn.known_ops.questions import IS_SET
from vdnn.torch_private import OpOverload, is_non_overlapping_and_dense, without_modes


def op_name(node: fx.Node) -> str:
    """`threshold_backward` for every overload of it; empty for what has no schema, or is of another
    library."""
    return base_name(node.target) if isinstance(node.target, OpOverload) else ""


def wanted(node: fx.Node) -> Mapping[str, Information]:
    """What a node takes of its arguments. Arguments that are not listed: all values."""
    assert isinstance(node.target, OpOverload), f"{node} has no schema"
    arguments = arguments_of(node)
    needs = needs_of(node.target, arguments)
    details = _details(op_name(node), arguments)
    return {name: _information(need, details.get(name, IS_SET), arguments[name]) for name, need in needs.items()}


def _details(name: str, arguments: Arguments) -> Mapping[str, Detail | None]:
    op = known(name)
    if op.window_dims:
        return {"indices": _window_detail(arguments, op.window_dims)}
    return op.details(arguments) if op.details is not None else {}


def _information(need: Need, detail: Detail | None, argument: Any) -> Information:
    if need in (Need.NOTHING, Need.SHAPE, Need.ALL):
        return Information(need)
    tensor = tensor_of(argument) if isinstance(argument, fx.Node) else None
    is_answerable = tensor is not None and (detail is not IS_SET or tensor.dtype is torch.bool)
    return Information(need, detail) if is_answerable and detail is not None else Information(Need.ALL)


def _window_detail(arguments: Arguments, num_dims: int) -> Detail | None:
    """The pooling's geometry, flat; None where the indices do not lie in memory in an order we can follow."""
    source, indices = tensor_of(arguments["self"]), tensor_of(arguments["indices"])
    if source is None or indices is None or not fills_its_storage(indices):
        return None
    order = _memory_order(indices, num_dims)
    if order is None:
        return None
    kernel = _triple(arguments["kernel_size"], num_dims, 1)
    stride = _triple(arguments["stride"] or arguments["kernel_size"], num_dims, 1)
    padding = _triple(arguments["padding"], num_dims, 0)
    dilation = _triple(arguments["dilation"], num_dims, 1)
    sizes = [_triple(list(tensor.shape[-num_dims:]), num_dims, 1) for tensor in (source, indices)]
    return (*kernel, *stride, *padding, *dilation, *sizes[0], *sizes[1], *order)


def _triple(given: Any, num_dims: int, missing: int) -> tuple[int, ...]:
    numbers = [int(x) for x in given] if isinstance(given, (list, tuple)) else [int(given)]
    numbers = numbers * num_dims if len(numbers) == 1 else numbers
    return (*[missing] * (3 - num_dims), *numbers)


def _memory_order(indices: torch.Tensor, num_dims: int) -> tuple[int, int] | None:
    """(outer, inner): planes that stand apart, and elements that share a place. Contiguous, or channels last."""
    batch = indices.shape[0] if indices.dim() == num_dims + 2 else 1
    channels = indices.shape[-num_dims - 1]
    if indices.is_contiguous():
        return batch * channels, 1
    channels_last = torch.channels_last if num_dims == 2 else torch.channels_last_3d
    if indices.dim() == num_dims + 2 and indices.is_contiguous(memory_format=channels_last):
        return batch, channels
    return None


def fills_its_storage(tensor: torch.Tensor) -> bool:
    """Every element of the storage is an element of the tensor, in some order."""
    nbytes = tensor.numel() * tensor.element_size()
    dense = is_non_overlapping_and_dense(tensor)
    return dense and tensor.storage_offset() == 0 and tensor.untyped_storage().nbytes() == nbytes


def reads_encoded(node: fx.Node, source: fx.Node, alphabet: Callable[[], Sequence[float]]) -> bool:
    """Whether `node` has a form that takes `source` encoded: an op we have fused, elements that lie as the gradient's
    do, fp32."""
    name = op_name(node)
    form = known(name.removesuffix("_")).encoded
    if form is None:
        return False
    assert isinstance(node.target, OpOverload), f"{node} has a name and no schema"
    arguments = arguments_of(node)
    if isinstance(form, FromBits):
        return arguments["self"] is source and _alike(arguments["grad_output"], source)
    if isinstance(form, FromWindowIndices):
        return arguments["indices"] is source and _pools_plainly(arguments, source, tensor_of(node))
    other = arguments["other"] if arguments["self"] is source else arguments["self"]
    overwritten = arguments["self"] if name == "mul_" else arguments.get("out")
    return other is not source and overwritten is not source and _alike(other, source) and len(alphabet()) == 2


def _alike(gradient: Any, source: fx.Node) -> bool:
    ours, theirs = tensor_of(source), tensor_of(gradient) if isinstance(gradient, fx.Node) else None
    if ours is None or theirs is None or ours.dtype != torch.float32 or theirs.dtype != torch.float32:
        return False
    same = ours.shape == theirs.shape and ours.stride() == theirs.stride()
    return same and fills_its_storage(ours) and is_non_overlapping_and_dense(theirs)


def _pools_plainly(arguments: Arguments, indices: fx.Node, result: torch.Tensor | None) -> bool:
    """The gradient lies as the indices do, so one walk over both reaches matching elements; and so does the result.
    Maps of one pixel lie in both orders, and the result of pooling them need not."""
    gradient = arguments["grad_output"]
    ours, theirs = tensor_of(indices), tensor_of(gradient) if isinstance(gradient, fx.Node) else None
    if ours is None or theirs is None or result is None or theirs.dtype != torch.float32:
        return False
    order = _memory_order(ours, 2)
    return ours.stride() == theirs.stride() and order is not None and order == _memory_order(result, 2)


def alphabet_of(dtypes: set[str], writers: Sequence[fx.Node]) -> tuple[float, ...]:
    """The only numbers that the elements of a storage can be, once its writers have run."""
    if dtypes == {"bool"}:
        return (0.0, 1.0)
    if len(writers) == 3 and known(op_name(writers[0])).fill is Fill.NOTHING and op_name(writers[1]) == "bernoulli_":
        divided, by = writers[2], writers[2].args[1:]
        if op_name(divided) == "div_" and by and isinstance(by[0], (int, float)) and by[0] > 0:  # else 0 is -0 or NaN
            on = _one_over(by[0], tensor_of(divided))
            return (0.0, on) if 0 < on < inf else ()
    return ()


def _one_over(divisor: float, like: torch.Tensor | None) -> float:
    """1 / divisor as the device computes it in the tensor's dtype: noise is made by that very division."""
    assert like is not None, "dropout's noise is a tensor"
    with without_modes():
        return float(torch.ones(1, dtype=like.dtype, device=like.device).div_(divisor))
