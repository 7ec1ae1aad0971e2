"""While a model is traced, the stand-ins of ops return what their kernels return.

Enters: what a fake tensor's op returned, and its arguments. Leaves: the same with the strides and the types of the real
op. The one idea: a trace decides by both, so where a stand-in is known to be wrong its result is put right before
anything else sees it. How the CPU's kernels lay results out stands in `known_ops/`; of other devices stand-ins are
right, or a watched step says so. Which types the statistics of a norm have is asked of the kernel itself, once for each
device and combination of types, on tensors of a few elements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from vdnn.capture.ops.overloads import overload, overloads
from vdnn.capture.recurrent_workspace import with_two_biases, with_workspace
from vdnn.hardware.where import CPU, indexed
from vdnn.known_ops import KNOWN_OPS
from vdnn.known_ops.known_op import KernelLayout
from vdnn.torch_private import FakeTensorMode, OpOverload, corrected_fake_results, schema_of, without_modes

Types = tuple[torch.dtype | None, ...]


@dataclass(frozen=True, slots=True)
class SmallCall:
    """A call of a norm on a few elements, by the names of its arguments: shapes of tensors, and what says the same in
    numbers. Every other argument is that of the real call."""

    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    numbers: tuple[tuple[str, Any], ...] = ()

    def argument(self, name: str, given: Any, where: torch.device) -> Any:
        if isinstance(given, torch.dtype):
            return torch.ones(dict(self.shapes).get(name, (2,)), dtype=given, device=where)
        return dict(self.numbers).get(name, given)


_SMALL_CALLS = {
    "batch_norm": SmallCall((("input", (2, 2, 1)), ("grad_out", (2, 2, 1)))),
    "layer_norm": SmallCall(
        (("input", (2, 2)), ("grad_out", (2, 2)), ("mean", (2, 1)), ("rstd", (2, 1))), (("normalized_shape", (2,)),)
    ),
    "group_norm": SmallCall(
        (("input", (1, 2, 1)), ("grad_out", (1, 2, 1)), ("mean", (1, 1)), ("rstd", (1, 1))),
        (("N", 1), ("C", 2), ("HxW", 1), ("group", 1)),
    ),
}
"""By what `kernel_types` of an entry in `known_ops/` says."""


def _contiguous(result: Any, *_: Any, **__: Any) -> Any:
    if isinstance(result, (tuple, list)):
        return tuple(map(_contiguous, result))
    return result if result is None or indexed(result.device) != CPU else result.contiguous()


def _as_the_gradient(result: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Of the CPU's elementwise kernels the first argument decides, where layouts differ."""
    gradient, other, *_ = (one for one in (*args, *kwargs.values()) if isinstance(one, torch.Tensor))
    return gradient + other if indexed(result.device) == CPU else result


@contextmanager
def stand_ins_are_as_kernels() -> Iterator[None]:
    """While open, fake tensors have the strides and types of the real ones. The gradient of
    nll_loss(log_softmax(x, -1).transpose(1, 2), y) was scattered over a tensor of other strides than were thought."""
    forget_fake_results()  # of a trace without these
    try:
        with corrected_fake_results(_CORRECTIONS):
            yield
    finally:
        forget_fake_results()  # a trace of somebody else has none of these


def forget_fake_results() -> None:
    """What fake tensors remember of calls, for the next call like them: some kilobytes per op."""
    FakeTensorMode.cache_clear()


def _with_types(small: SmallCall, op: OpOverload) -> Callable[..., tuple[torch.Tensor | None, ...]]:
    """With the types that the kernel returns where its arguments have these types."""
    names = [argument.name for argument in schema_of(op).arguments]

    def corrected(results: Sequence[torch.Tensor | None], *args: Any, **kwargs: Any) -> tuple[torch.Tensor | None, ...]:
        given = dict(zip(names, args, strict=False)) | kwargs
        where = indexed(next(one.device for one in results if one is not None))
        types = _types_of(small, op, tuple(_hashable(given[name]) for name in names if name in given), where)
        return tuple(one if one is None else one.to(type) for one, type in zip(results, types, strict=True))

    return corrected


def _hashable(argument: Any) -> Any:
    """Of a tensor, its type."""
    if isinstance(argument, torch.Tensor):
        return argument.dtype
    return tuple(argument) if isinstance(argument, list) else argument


@cache
def _types_of(small: SmallCall, op: OpOverload, given: tuple[Any, ...], where: torch.device) -> Types:
    names = [argument.name for argument in schema_of(op).arguments]
    with without_modes(), torch.no_grad():
        results = op(*(small.argument(name, one, where) for name, one in zip(names, given, strict=False)))
    return tuple(None if result is None else result.dtype for result in results)


def _corrections() -> Iterator[tuple[OpOverload, Callable[..., Any]]]:
    for op in KNOWN_OPS.values():
        laid_out = None if op.kernel_layout is None else _LAYOUTS[op.kernel_layout]
        for asked in overloads(op.name) if op.kernel_types else ():
            typed = _with_types(_SMALL_CALLS[op.kernel_types], asked)
            yield asked, typed if laid_out is None else _one_after_the_other(typed, laid_out)
        if laid_out is not None and not op.kernel_types:
            yield overload(op.name, "default"), laid_out


_LAYOUTS = {KernelLayout.CONTIGUOUS: _contiguous, KernelLayout.AS_THE_GRADIENT: _as_the_gradient}


def _of_recurrent_layers() -> dict[OpOverload, Callable[..., Any]]:
    if not torch.backends.mkldnn.is_available():
        return {}
    of = {"mkldnn_rnn_layer": with_workspace, "mkldnn_rnn_layer_backward": with_two_biases}
    return {overload(name, "default"): correct for name, correct in of.items()}


def _one_after_the_other(first: Callable[..., Any], then: Callable[..., Any]) -> Callable[..., Any]:
    return lambda result, *args, **kwargs: then(first(result, *args, **kwargs), *args, **kwargs)


_CORRECTIONS: dict[OpOverload, Callable[..., Any]] = dict(_corrections()) | _of_recurrent_layers()
"""`tests/cpu/test_in_place_forms.py` compares the layouts of all ops that may write over an input with their kernels',
`tests/cpu/test_known_ops.py` those of others that are put right. An op whose stand-in is wrong and not here is refused
when a step is watched."""
