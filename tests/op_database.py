"""PyTorch's operator database: every op with sample arguments, in several layouts, and the calls that come of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

from vdnn.torch_private import OpOverload

NUM_SAMPLES = 6
"""Of each op, beginning with the plainest: the database has up to hundreds."""


@dataclass(frozen=True)
class Sample:
    """A call as people write it."""

    op: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __call__(self) -> Any:
        return self.op(*self.args, **self.kwargs)


@dataclass(frozen=True)
class AtenCall:
    """A call as the dispatcher sees it."""

    op: OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@cache
def database() -> dict[str, Any]:
    """Of the ops that have a gradient in float32."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    found = [op for op in op_db if op.supports_dtype(torch.float32, "cpu") and op.supports_autograd]
    return {f"{op.name} {op.variant_test_name}".rstrip(): op for op in found}


def samples(name: str, num: int = NUM_SAMPLES) -> Iterator[Sample]:
    info = database()[name]
    for _, sample in zip(range(num), info.sample_inputs("cpu", torch.float32, requires_grad=True), strict=False):
        yield Sample(info.op, (sample.input, *sample.args), dict(sample.kwargs))


def transposed(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.transpose(-1, -2).contiguous().transpose(-1, -2) if tensor.dim() >= 2 else tensor


def channels_last(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor


def in_layouts(sample: Sample) -> Iterator[Sample]:
    """As it is, all floats laid out otherwise, and only the first of them so."""
    yield sample
    for change in (transposed, channels_last):
        everywhere = laid_out(change, (sample.args, sample.kwargs))
        yield Sample(sample.op, *everywhere)
        yield Sample(sample.op, (laid_out(change, sample.args[0]), *sample.args[1:]), sample.kwargs)


def laid_out(change: Callable[[torch.Tensor], torch.Tensor], given: Any) -> Any:
    def changed(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or leaf.layout is not torch.strided or not leaf.is_floating_point():
            return leaf
        return change(leaf.detach()).requires_grad_(leaf.requires_grad)

    return tree_map(changed, given)


class _Records(TorchDispatchMode):
    def __init__(self, found: dict[str, AtenCall]) -> None:
        super().__init__()
        self.found = found

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        call = AtenCall(op, args, kwargs or {})
        name, before = described(call), detached(call)
        result = op(*args, **(kwargs or {}))
        self.found.setdefault(name, before)
        return result


def described(call: AtenCall) -> str:
    def spelled(leaf: Any) -> Any:
        return (tuple(leaf.shape), leaf.stride(), leaf.dtype) if isinstance(leaf, torch.Tensor) else leaf

    leaves, spec = tree_flatten((call.args, call.kwargs))
    return f"{call.op} {[spelled(leaf) for leaf in leaves]} {spec}"


def detached(call: AtenCall) -> AtenCall:
    """With tensors that nobody writes over afterwards."""

    def kept(leaf: Any) -> Any:
        return leaf.detach().clone() if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided else leaf

    with torch.no_grad():
        args, kwargs = tree_map(kept, (call.args, call.kwargs))
    return AtenCall(call.op, args, kwargs)


def aten_calls(name: str, num: int = NUM_SAMPLES) -> list[AtenCall]:
    """All distinct ones, forward and backward, as far as the op runs in that layout."""
    found: dict[str, AtenCall] = {}
    with warnings.catch_warnings(), torch.random.fork_rng([]):
        warnings.simplefilter("ignore")
        for sample in samples(name, num):
            for call in in_layouts(sample):
                try:
                    with _Records(found):
                        differentiable = [y for y in tree_leaves(call()) if getattr(y, "requires_grad", False)]
                        torch.autograd.backward(differentiable, [torch.ones_like(y) for y in differentiable])
                except RuntimeError:  # not in this layout
                    continue
    return list(found.values())
