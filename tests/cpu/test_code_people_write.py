"""What is not torch in a forward pass: numpy, random numbers of others, counters. Each has eager mode's bits, or says
why not."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from equivalence import check, executors, virtualize
from nets import PYTORCH_MAY_WARN, Using, backward
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import vdnn
from vdnn.capture.numpy_calls import has_numpys_bits
from vdnn.errors import Unsupported


class Swish(torch.autograd.Function):
    """With numpy's own exponential."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.from_numpy(x.numpy() / (1 + np.exp(-x.numpy())))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        gate = 1 / (1 + np.exp(-x.numpy()))
        return gradient * torch.from_numpy(gate * (1 + x.numpy() * (1 - gate)))


def in_a_function(self: Any, x: Tensor) -> Tensor:
    return self.last(Swish.apply(self.first(x)))


def in_the_forward(self: Any, x: Tensor) -> Tensor:
    hidden = self.first(x)
    return self.last(hidden * torch.from_numpy(np.tanh(hidden.detach().numpy())))


def with_random_numbers(self: Any, x: Tensor) -> Tensor:
    return self.last(self.first(x) * torch.from_numpy(np.random.rand(64).astype(np.float32)))


def with_a_random_mask(self: Any, x: Tensor) -> Tensor:
    mask = np.zeros((256, 64), dtype=bool)
    mask[np.random.choice(256, 30, replace=False)] = True
    return self.last(self.first(x).masked_fill(torch.from_numpy(mask), 0.0))


def layers(function: Callable[..., Any], **more: Any) -> nn.Module:
    torch.manual_seed(0)
    return Using(function, first=nn.Linear(16, 64), last=nn.Linear(64, 64), **more)


def x() -> Tensor:
    return torch.randn(256, 16, generator=torch.Generator().manual_seed(1))


def two_steps(model: Any) -> Any:
    np.random.seed(3)
    random.seed(3)
    for _ in range(2):
        backward(model, x())
    return np.random.rand(), random.random()


@PYTORCH_MAY_WARN
@pytest.mark.parametrize("asked", [{}, {"budget": "16MiB"}])
@pytest.mark.parametrize("function", [in_a_function, in_the_forward, with_random_numbers, with_a_random_mask])
def test_numpy_computes_what_numpy_computes(function: Any, asked: Any) -> None:
    expected, found = check(layers(function), two_steps, **asked)
    assert expected == found


def test_numpy_that_only_moves_numbers_is_captured() -> None:
    def moves(self: Any, x: Tensor) -> Tensor:
        rows = np.zeros((64, 1), dtype=np.float32)
        rows[3] = 1.0
        return self.last(self.first(x) @ torch.from_numpy(rows.repeat(64, 1).transpose(1, 0).copy()) / np.sqrt(64))

    model = layers(moves)
    virtual = virtualize(copy.deepcopy(model), fullgraph=True)
    backward(virtual, x())
    backward(model, x())
    assert torch.equal(virtual.first.weight.grad, model.first.weight.grad)  # type: ignore[union-attr, arg-type]


def test_what_numpy_function_nobody_knows_is_not_traced() -> None:
    assert has_numpys_bits("reshape")
    assert not any(map(has_numpys_bits, ("exp", "sum", "mean", "power", "pow", "matmul", "of a later numpy")))


@pytest.mark.parametrize("draw", [lambda: np.random.rand(), lambda: random.random()])
def test_random_numbers_that_a_trace_would_freeze_are_refused_ahead_of_time(draw: Any) -> None:
    model = layers(lambda self, x: self.last(self.first(x)) * draw())
    np.random.seed(3)
    random.seed(3)
    before = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[union-attr]
    with pytest.raises(Unsupported, match="draws random numbers from"):
        virtualize(model, sample=x())
    assert before == (random.getstate(), np.random.get_state()[1].tolist())  # type: ignore[union-attr]


def counts(self: Any, x: Tensor) -> Tensor:
    self.calls += 1
    return self.last(self.first(x)) / self.calls


def notes(self: Any, x: Tensor) -> Tensor:
    self.calls = max(self.calls, x.shape[0])
    return self.last(self.first(x)) / self.calls


def test_a_counter_that_a_trace_would_freeze_is_refused_ahead_of_time() -> None:
    model = layers(counts, calls=0)
    with pytest.raises(Unsupported, match=r"changes an attribute at every call \(Using\.calls\)"):
        virtualize(model, sample=x())
    assert model.calls == 0
    check(layers(counts, calls=0), two_steps)


def test_a_counter_keeps_counting_within_a_budget() -> None:
    check(layers(counts, calls=0), two_steps, sample=x(), budget="16MiB")


def test_a_note_of_what_was_seen_is_no_counter() -> None:
    check(layers(notes, calls=0), two_steps, sample=x())


def block(self: Any, x: Tensor) -> Tensor:
    return torch.relu(self.norm(self.last(x)))


@PYTORCH_MAY_WARN
@pytest.mark.parametrize("asked", [{}, {"budget": "16MiB"}])
@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpointed_region_updates_its_statistics_twice(reentrant: bool, asked: Any) -> None:
    def run(self: Any, x: Tensor) -> Tensor:
        return checkpoint(lambda hidden: block(self, hidden), self.first(x), use_reentrant=reentrant)

    check(layers(run, norm=nn.BatchNorm1d(64)), two_steps, **asked)


def test_a_checkpointed_region_with_statistics_is_refused_ahead_of_time() -> None:
    def run(self: Any, x: Tensor) -> Tensor:
        return checkpoint(lambda hidden: block(self, hidden), self.first(x), use_reentrant=False)

    with pytest.raises(Unsupported, match=r"norm has buffers and lies in a region of torch\.utils\.checkpoint"):
        virtualize(layers(run, norm=nn.BatchNorm1d(64)), sample=x())


def test_a_checkpointed_region_without_statistics_is_planned() -> None:
    def run(self: Any, x: Tensor) -> Tensor:
        return checkpoint(lambda hidden: self.drop(torch.tanh(self.last(hidden))), self.first(x), use_reentrant=False)

    model = layers(run, drop=nn.Dropout(0.3))
    virtual = virtualize(copy.deepcopy(model), budget="90%")
    check(model, two_steps, budget="90%")
    backward(virtual, x())
    assert len(executors(virtual)) == 1
    assert vdnn.report(virtual).strategy == "auto"


@PYTORCH_MAY_WARN
@pytest.mark.parametrize("asked", [{}, {"budget": "16MiB"}])
def test_rows_that_are_chosen_by_their_values_train(asked: Any) -> None:
    def run(self: Any, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x))[x[:, 0] > 0])

    check(layers(run), two_steps, **asked)
