"""From the ops of a captured graph to calls that can be measured one by one.

Enters: a lowered graph. Leaves: one `OpCall` per op for `cost/measured.py`, None for views and for ops with effects
that nobody declared, which are not run for the sake of knowing. Inputs are made up with the shapes, strides and dtypes
of the trace: random floats, zeros for integers (which are indices more often than not, and zero is always one), ones
where it divides.

An op that can be computed in other ways brings those along, each with the op itself on the same inputs, so that they
can be compared. For that the inputs have both signs and stretches of zeros, as maps behind a ReLU have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import Any, cast

import torch
from torch import fx

from vdnn.capture.lower import Lowered, mutated_by
from vdnn.capture.nodes import op_of, tensor_of, tensors_of, value_of
from vdnn.capture.ops.information import op_name
from vdnn.capture.ops.overloads import overloads
from vdnn.convolutions.compute import COMPUTE
from vdnn.convolutions.traced import variant_arguments, variants_of
from vdnn.convolutions.ways import may_be_exact
from vdnn.cost.measured import OpCall, OpVariant, Run
from vdnn.hardware.where import CPU
from vdnn.ir import Op, Trait
from vdnn.known_ops import known
from vdnn.torch_private import OpOverload

_NEVER_TRIED = frozenset({Trait.COLLECTIVE, Trait.MUST_KEEP})


def op_calls(lowered: Lowered) -> list[OpCall | None]:
    return [_call(node, op) for node, op in zip(lowered.nodes, lowered.graph.ops, strict=True)]


def may_be_tried(op: Op) -> bool:
    """Not what others take part in, and not what may do anything: a user's own op, or one with a generator."""
    return not _NEVER_TRIED & op.traits


def _call(node: fx.Node, op: Op) -> OpCall | None:
    if op.has(Trait.VIEW) or not may_be_tried(op) or not isinstance(node.target, OpOverload):
        return None
    in_nbytes = sum(_extent_nbytes(tensor) for tensor in map(tensor_of, node.all_input_nodes) if tensor is not None)
    made = () if mutated_by(node) else tensors_of(node)  # what writes over an input makes nothing
    out_nbytes = sum(_extent_nbytes(tensor) for tensor in made if tensor is not None)
    return OpCall(
        _key(node),
        lambda: _make(node, _invented),
        tuple(_variant(node, name) for name in variants_of(node)),
        lambda: _make(node, _all_alike),
        lambda names: _make_variants(node, names),
        _family(node),
        in_nbytes + out_nbytes,
        out_nbytes,
        _is_elementwise(node),
    )


def _is_elementwise(node: fx.Node) -> bool:
    """Whether it makes each element out of those at the same place, of one type: then it needs no workspace."""
    types = {tensor.dtype for tensor in map(tensor_of, node.all_input_nodes) if tensor is not None}
    return len(types) == 1 and is_pointwise(op_name(node))


@cache
def is_pointwise(name: str) -> bool:
    """By PyTorch's own tags, which not every overload of an op carries."""
    return bool(name) and any(torch.Tag.pointwise in each.tags for each in overloads(name))


def _family(node: fx.Node) -> str:
    """Calls that need workspaces in like proportion: of one op, type and layout."""
    first = next((tensor for tensor in map(tensor_of, node.all_input_nodes) if tensor is not None), None)
    if first is None:
        return str(node.target)
    is_last = first.dim() == 4 and first.is_contiguous(memory_format=torch.channels_last)
    return f"{node.target} {first.dtype} {'channels_last' if is_last else 'plain'}"


def _variant(node: fx.Node, name: str) -> OpVariant:
    return OpVariant(name, lambda: _make_both(node, name), may_be_exact(name))


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
    kind = "" if value.device.type in ("cpu", "meta") else f" on {value.device.type}"
    return f"{value.dtype}{tuple(value.shape)}@{tuple(value.stride())}{kind}".removeprefix("torch.")


def _make(node: fx.Node, invent: Callable[[torch.Tensor], torch.Tensor]) -> Run:
    args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), _Inputs(invent).make)
    if known(op_name(node).rstrip("_")).divides and isinstance(args[1], torch.Tensor):
        args = (args[0], torch.ones_like(args[1]), *args[2:])
    target: Any = node.target
    return lambda: target(*args, **kwargs)


def _make_both(node: fx.Node, variant: str) -> tuple[Run, Run]:
    """A variant, and the op itself on the same inputs."""
    op, runs = _make_variants(node, [variant])
    return runs[variant], op


def _make_variants(node: fx.Node, variants: Iterable[str]) -> tuple[Run, dict[str, Run]]:
    """The op itself, and variants by name, all on the same inputs."""
    inputs, target, function = _Inputs(_both_signs_and_zeros), cast(Any, node.target), COMPUTE[op_of(node)]
    args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), inputs.make)
    given = {name: fx.map_arg(variant_arguments(node, name), inputs.make) for name in variants}
    return partial(target, *args, **kwargs), {name: partial(function, *others) for name, others in given.items()}


class _Inputs:
    """Made-up inputs, one for each node that is asked for."""

    def __init__(self, invent: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._invent = invent
        self._made: dict[fx.Node, Any] = {}

    def make(self, source: fx.Node) -> Any:
        if source not in self._made:
            tensor = tensor_of(source)
            self._made[source] = value_of(source) if tensor is None else self._invent(tensor)
        return self._made[source]


def _invented(like: torch.Tensor) -> torch.Tensor:
    # Between 0.1 and 1: safe as a variance, a divisor and under a logarithm; denormals would cost time that real data
    # does not.
    flat = _flat(like)
    flat = flat.uniform_(0.1, 1.0) if like.dtype.is_floating_point else flat.zero_()
    return flat.as_strided(tuple(like.shape), like.stride())


def _all_alike(like: torch.Tensor) -> torch.Tensor:
    """Enough for an op that is run to see what it needs; random numbers would take longer than most ops."""
    flat = _flat(like)
    flat = flat.fill_(0.5) if like.dtype.is_floating_point else flat.zero_()
    return flat.as_strided(tuple(like.shape), like.stride())


def _both_signs_and_zeros(like: torch.Tensor) -> torch.Tensor:
    flat = _flat(like).normal_()
    flat[::3] = 0
    flat[: len(flat) // 8] = 0  # whole windows of zeros: their sums have a sign too
    return flat.as_strided(tuple(like.shape), like.stride())


def _flat(like: torch.Tensor) -> torch.Tensor:
    # Flat, to be laid out when filled: an expanded tensor repeats elements and could not be filled itself.
    return torch.empty(_extent(like), dtype=like.dtype, device=CPU if like.is_meta else like.device)


def _extent(like: torch.Tensor) -> int:
    sizes = zip(like.shape, like.stride(), strict=True)
    return 1 + sum((size - 1) * step for size, step in sizes) if like.numel() else 0


def _extent_nbytes(like: torch.Tensor) -> int:
    return _extent(like) * like.element_size()
