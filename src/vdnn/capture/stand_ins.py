"""While a model is traced, the stand-ins of ops return what their kernels return.

Enters: what a fake tensor's op returned, and its arguments. Leaves: the same with the strides and the types of the real
op. The one idea: a trace decides by both (which reshape is a view, in which order a mask is drawn, what a kernel takes
for channels_last), and some stand-ins have others than the kernels. So each kernel is asked (`asked_kernels.py`), and
where it says something else its stand-in's result is put right before anything sees it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from vdnn.capture.asked_kernels import ASKED_INSTEAD, Answer, Layout, asked, may_be_asked
from vdnn.capture.ops.overloads import overload
from vdnn.capture.recurrent_workspace import with_two_biases, with_workspace
from vdnn.capture.small_calls import call_of, like_of
from vdnn.torch_private import FakeTensorMode, OpOverload, corrected_fake_results

Said = tuple[Layout | None, ...]


@contextmanager
def stand_ins_are_as_kernels() -> Iterator[None]:
    """While open, fake tensors have the strides and types of the real ones. The gradient of
    nll_loss(log_softmax(x, -1).transpose(1, 2), y) was scattered over a tensor of other strides than were thought."""
    forget_fake_results()  # of a trace without these
    try:
        with corrected_fake_results(_corrected):
            yield
    finally:
        forget_fake_results()  # a trace of somebody else has none of these


def forget_fake_results() -> None:
    """What fake tensors remember of calls, for the next call like them: some kilobytes per op."""
    FakeTensorMode.cache_clear()


def _corrected(op: Any, result: Any, args: Any, kwargs: Any) -> Any:
    if not isinstance(op, OpOverload) or not may_be_asked(op):
        return result
    if op in _RECURRENT_LAYERS:
        return _RECURRENT_LAYERS[op](result, *args, **kwargs)
    is_one = isinstance(result, torch.Tensor)
    results = (result,) if is_one else result
    if not isinstance(results, (tuple, list)):
        return result
    layouts = kernel_layouts(op, args, kwargs, results)
    if layouts is None:
        return result
    corrected = [one if layout is None else _with(one, layout) for one, layout in zip(results, layouts, strict=True)]
    return corrected[0] if is_one else corrected if isinstance(result, list) else tuple(corrected)


def kernel_layouts(op: OpOverload, args: Any, kwargs: Any, results: Sequence[Any]) -> Said | None:
    """By position, the layout that the kernel gives a result where its stand-in has another."""
    call = call_of(ASKED_INSTEAD.get(op, op), args, kwargs)
    if call is None or not results:
        return None
    traced = [_layout_of(one) if isinstance(one, torch.Tensor) else None for one in results]
    for said in asked(call):
        layouts = _at_shapes(said, traced)
        if layouts is not None:
            differs = [None if a == b else a for a, b in zip(layouts, traced, strict=True)]
            return tuple(differs) if any(differs) else None
    return None


def _at_shapes(said: Answer, traced: Sequence[Layout | None]) -> Said | None:
    """None where the answer does not fit the results that were traced. What a write stands for has more results: what
    was written."""
    if said is None:
        return None
    said = (*said, *traced[len(said) :])
    if [one is None for one in said] != [one is None for one in traced]:
        return None
    layouts = [None if a is None or b is None else a.at(b.shape) for a, b in zip(said, traced, strict=True)]
    fits = all((a is None) == (b is None) for a, b in zip(layouts, traced, strict=True))
    return tuple(layouts) if fits else None


def _layout_of(traced: torch.Tensor) -> Layout | None:
    like = like_of(traced)
    return None if like is None else Layout(like.shape, like.stride, like.dtype)


def _with(traced: torch.Tensor, layout: Layout) -> torch.Tensor:
    return torch.empty_strided(layout.shape, layout.stride, dtype=layout.dtype, device=traced.device)


def _recurrent_layers() -> dict[OpOverload, Callable[..., Any]]:
    if not torch.backends.mkldnn.is_available():
        return {}
    of = {"mkldnn_rnn_layer": with_workspace, "mkldnn_rnn_layer_backward": with_two_biases}
    return {overload(name, "default"): correct for name, correct in of.items()}


_RECURRENT_LAYERS = _recurrent_layers()
"""Of these even the sizes have to be asked for, and a backward believes whatever workspace it is given."""
