"""What a trace thinks of results is what kernels say: over PyTorch's operator database, and for calls of any size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from equivalence import check
from nets import EITHER_FRONT_END, backward, options
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from larger import all_but_larger
from op_database import AtenCall, aten_calls, database, described
from vdnn.capture.asked_kernels import EASY_NBYTES, Layout, answer, may_be_asked
from vdnn.capture.dim_orders import is_dense
from vdnn.capture.ops.overloads import base_name
from vdnn.capture.small_calls import call_of, smaller_calls
from vdnn.capture.stand_ins import stand_ins_are_as_kernels
from vdnn.cost.op_memory import allocation_changes, highest_over_last
from vdnn.torch_private import FakeTensorMode
from vdnn.units import MiB

aten = torch.ops.aten

A_FEW = [
    "nn.functional.batch_norm",
    "nn.functional.huber_loss",
    "nn.functional.max_unpool2d",
    "nn.functional.logsigmoid",
    "pow",
    "nn.functional.pad reflect",
]
EVERY_OP = pytest.mark.parametrize("name", all_but_larger(A_FEW, database()))


def layouts(result: Any) -> list[Layout | None]:
    leaves = result if isinstance(result, (tuple, list)) else [result]
    return [Layout(tuple(y.shape), y.stride(), y.dtype) if isinstance(y, Tensor) else None for y in leaves]


def agree(traced: Layout | None, real: Layout | None) -> bool:
    """The stride of a dim of one element, or of an empty tensor, leads nowhere."""
    if traced is None or real is None:
        return True
    same = traced.shape == real.shape and traced.dtype == real.dtype
    steps = zip(traced.stride, real.stride, real.shape, strict=True)
    return same and (0 in real.shape or all(a == b or size == 1 for a, b, size in steps))


def real_results(call: AtenCall) -> Any:
    with torch.no_grad(), torch.random.fork_rng([]):
        return call.op(*call.args, **call.kwargs)


def traced_results(call: AtenCall) -> Any:
    """None where it cannot be traced."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    args, kwargs = tree_map(lambda x: mode.from_tensor(x) if isinstance(x, Tensor) else x, (call.args, call.kwargs))
    try:
        with mode, torch.no_grad():
            return call.op(*args, **kwargs)
    except Exception:
        return None


def asked_calls(name: str) -> Iterator[AtenCall]:
    for call in aten_calls(name):
        strided = all(x.layout is torch.strided for x in tree_leaves((call.args, call.kwargs)) if isinstance(x, Tensor))
        if strided and may_be_asked(call.op) and runs(call):
            yield call


def runs(call: AtenCall) -> bool:
    """Not every call does with copies of its tensors, which have no holes."""
    try:
        real_results(call)
    except RuntimeError:
        return False
    return True


@EVERY_OP
def test_a_trace_has_the_layouts_and_types_of_kernels(name: str) -> None:
    calls = list(asked_calls(name))
    with stand_ins_are_as_kernels():
        traced = [traced_results(call) for call in calls]
    wrong = [
        described(call)
        for call, result in zip(calls, traced, strict=True)
        if result is not None and not all(map(agree, layouts(result), layouts(real_results(call))))
    ]
    assert wrong == []


def in_place_keeps(call: AtenCall) -> Layout | None:
    """The layout that the result has if the program wrote over the first argument, which a trace does not show."""
    first = call.args[0] if call.args else None
    has_form = hasattr(aten, f"{base_name(call.op)}_")
    return layouts(first)[0] if has_form and isinstance(first, Tensor) else None


@EVERY_OP
def test_what_is_put_right_is_right_for_its_form_in_place_too(name: str) -> None:
    wrong = []
    for call in asked_calls(name):
        result, kept = traced_results(call), in_place_keeps(call)
        if result is None or kept is None:
            continue
        traced, real = layouts(result)[0], layouts(real_results(call))[0]
        could_be_written = real is not None and (kept.shape, kept.dtype) == (real.shape, real.dtype)
        if could_be_written and is_dense(kept.shape, kept.stride) and not agree(traced, real) and not agree(kept, real):
            wrong.append(described(call))
    assert wrong == []


@EVERY_OP
def test_a_smaller_call_says_the_same(name: str) -> None:
    wrong = []
    for call in asked_calls(name):
        asked, real = call_of(call.op, call.args, call.kwargs), layouts(real_results(call))
        said = [] if asked is None else map(answer, smaller_calls(asked))
        for layouts_said in said:
            if layouts_said is None or [y is None for y in layouts_said] != [y is None for y in real]:
                continue
            fitting = [a and b and a.at(b.shape) for a, b in zip(layouts_said, real, strict=True)]
            if [y is None for y in fitting] == [y is None for y in real]:
                wrong += [] if all(map(agree, fitting, real)) else [described(call)]
                break
    assert wrong == []


def test_a_call_of_gigabytes_is_asked_on_a_few_elements() -> None:
    """The gradient of a layer norm is contiguous, whatever arrives."""
    with stand_ins_are_as_kernels(), FakeTensorMode():
        x, dy = torch.empty(2000, 56, 56, 96), torch.empty(2000, 96, 56, 56).permute(0, 2, 3, 1)
        statistics = torch.empty(2000, 56, 56, 1), torch.empty(2000, 56, 56, 1)
        call = (dy, x, [96], *statistics, torch.empty(96), torch.empty(96), [True] * 3)
        nbytes = highest_over_last(allocation_changes(lambda: aten.native_layer_norm_backward(*call)))
        assert aten.native_layer_norm_backward(*call)[0].is_contiguous()
    assert nbytes < MiB


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("like", [torch.contiguous_format, torch.channels_last], ids=str)
def test_a_large_convolution_can_be_asked_whatever_the_arithmetic_of_its_sizes(
    stride: int, like: torch.memory_format
) -> None:
    with FakeTensorMode():
        x, weight = torch.empty(256, 64, 224, 224).to(memory_format=like), torch.empty(128, 64, 7, 7)
        options = [stride, stride], [3, 3], [1, 1], False, [0, 0], 1
        dy = aten.convolution(x, weight, None, *options)
        call = call_of(aten.convolution_backward.default, (dy, x, weight, None, *options, [True, True, False]), {})
    assert call is not None
    assert any(small.nbytes <= EASY_NBYTES and answer(small) is not None for small in smaller_calls(call))


class UnderAutocast(nn.Module):
    """Statistics of norms are float32 where their inputs are not; tokens become channels."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.batch_norm = nn.Conv2d(3, 8, 4, stride=4), nn.BatchNorm2d(8)
        self.layer_norm, self.last = nn.LayerNorm(8), nn.Conv2d(8, 4, 1)

    def forward(self, images: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            tokens = self.layer_norm(self.batch_norm(self.first(images)).flatten(2).transpose(1, 2))
            return self.last(F.hardswish(tokens.transpose(1, 2).unflatten(2, (4, 4)))).float()


@EITHER_FRONT_END
def test_norms_under_autocast_between_channels_and_tokens_are_exact(front_end: str) -> None:
    images = torch.randn(2, 3, 16, 16)
    check(UnderAutocast(), lambda model: backward(model, images), **options(front_end, images))
