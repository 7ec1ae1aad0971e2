"""From the steps of a captured graph to calls that can be measured one by one.

Enters: a lowered graph. Leaves: one `OpCall` per step for `cost/measured.py`, None for views. Inputs are made up with
the shapes, strides and dtypes of the trace: random floats, zeros for integers (which are indices more often than not,
and zero is always one).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from vdnn.capture.lower import Lowered
from vdnn.capture.nodes import tensor_of, value_of
from vdnn.cost.measured import OpCall
from vdnn.ir import Trait


def op_calls(lowered: Lowered) -> list[OpCall | None]:
    return [_call(node, op.has(Trait.VIEW)) for node, op in zip(lowered.nodes, lowered.graph.ops, strict=True)]


def _call(node: fx.Node, is_view: bool) -> OpCall | None:
    if is_view or not isinstance(node.target, torch._ops.OpOverload):
        return None
    return OpCall(_key(node), lambda: _make(node))


def _key(node: fx.Node) -> str:
    """Op and arguments; a tensor that stands in two places says so, because an op in place costs less than one that is
    not."""
    seen: dict[fx.Node, int] = {}

    def describe(source: fx.Node) -> str:
        if source in seen:
            return f"same as {seen[source]}"
        seen[source] = len(seen)
        return _spelled(value_of(source))

    return f"{node.target}{fx.map_arg((node.args, dict(node.kwargs)), describe)}"


def _spelled(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return repr(value)
    return f"{value.dtype}{tuple(value.shape)}@{tuple(value.stride())}".removeprefix("torch.")


def _make(node: fx.Node) -> Callable[[], object]:
    made: dict[fx.Node, Any] = {}

    def make(source: fx.Node) -> Any:
        if source not in made:
            tensor = tensor_of(source)
            made[source] = value_of(source) if tensor is None else _invented(tensor)
        return made[source]

    args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), make)
    target: Any = node.target
    return lambda: target(*args, **kwargs)


def _invented(like: torch.Tensor) -> torch.Tensor:
    # Flat, then laid out: an expanded tensor repeats elements and could not be filled itself.
    shape, stride = tuple(like.shape), like.stride()
    extent = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True)) if like.numel() else 0
    flat = torch.empty(extent, dtype=like.dtype)
    # Between 0.1 and 1: safe as a variance, a divisor and under a logarithm; denormals would cost time that real data
    # does not.
    flat = flat.uniform_(0.1, 1.0) if like.dtype.is_floating_point else flat.zero_()
    return flat.as_strided(shape, stride)
