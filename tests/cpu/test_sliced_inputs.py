"""Batches that are slices of one data set begin somewhere else in its storage on every call; what is computed again in
backward is computed from the batch of that call.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from equivalence import executors
from torch import Tensor, nn

import vdnn
from vdnn.plan.judge.schedule import Kind

pytestmark = pytest.mark.any_device

DATA = torch.randn(64, 8, 8)
Batches = Sequence[tuple[Tensor, ...]]
ONE: Batches = [(DATA[k : k + 8],) for k in (16, 0, 8)]
TWO: Batches = [(DATA[a : a + 8], DATA[b : b + 8]) for a, b in ((8, 16), (0, 24), (40, 32), (8, 8))]
INTERLEAVED: Batches = [(DATA[k::8],) for k in (1, 0, 5)]
COLUMNS: Batches = [(DATA[:8, k : k + 4],) for k in (2, 0, 4)]


def through(look: Callable[..., Tensor]) -> nn.Module:
    """Sine of a look at the inputs, then a layer: the sine is computed again from the look."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.LazyLinear(16), nn.Linear(16, 16)

        def forward(self, *inputs: Tensor) -> Tensor:
            hidden = torch.tanh(self.first(torch.sin(look(*inputs))))
            return self.second(torch.sin(hidden)).square().sum()

    return Net()


LOOKS: dict[str, tuple[Callable[..., Tensor], Batches]] = {
    "flattened": (lambda x: x.flatten(1), ONE),
    "transposed": (lambda x: x.transpose(1, 2), ONE),
    "half of it": (lambda x: x.chunk(2, dim=1)[1], ONE),
    "other bytes": (lambda x: x.view(torch.int32)[:, 2:].view(torch.float32), ONE),
    "every eighth": (lambda x: x.unsqueeze(1), INTERLEAVED),
    "columns": (lambda x: x.transpose(0, 2), COLUMNS),
    "the second of two": (lambda x, y: y.unsqueeze(1), TWO),
    "two, one after the other": (lambda x, y: torch.cos(x.flatten(1)) + y.transpose(1, 2).flatten(1), TWO),
}


def gradients(step: Callable[..., Tensor], model: nn.Module, batch: tuple[Tensor, ...]) -> list[Tensor]:
    model.zero_grad()
    step(*batch).backward()
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("is_sampled", [True, False], ids=["ahead of time", "just in time"])
@pytest.mark.parametrize("strategy", ["recompute-speed", "recompute-memory"])
@pytest.mark.parametrize("look", LOOKS)
def test_a_replay_reads_the_batch_of_its_own_call(look: str, strategy: str, is_sampled: bool) -> None:
    function, batches = LOOKS[look]
    model = through(function)
    model(*batches[0])
    plain = copy.deepcopy(model)
    options: dict[str, Any] = {"sample": batches[0]} if is_sampled else {}
    virtual = vdnn.virtualize(model, strategy=strategy, **options)
    for batch in batches:
        expected, got = gradients(plain, plain, batch), gradients(virtual, model, batch)
        assert len(got) == 4
        assert all(map(torch.equal, expected, got))
    assert any(i.kind is Kind.REPLAY for executor in executors(virtual) for i in executor.plan.program)


def test_weights_that_are_parts_of_one_tensor_may_be_other_parts_later() -> None:
    class Net(nn.Module):
        def __init__(self, weights: Tensor) -> None:
            super().__init__()
            self.one, self.other = nn.Parameter(weights[:8]), nn.Parameter(weights[8:16])

        def forward(self, x: Tensor) -> Tensor:
            return ((x @ torch.sin(self.one.t())) @ torch.sin(self.other.t())).square().sum()

    weights, batch = torch.randn(32, 8), DATA[0]
    model, plain = Net(weights), Net(weights)
    virtual = vdnn.virtualize(model, strategy="recompute-memory", sample=(batch,))
    for one, other in ((0, 8), (16, 8), (8, 24)):
        for net in (model, plain):
            net.one.data, net.other.data = weights[one : one + 8], weights[other : other + 8]
        assert all(map(torch.equal, gradients(plain, plain, (batch,)), gradients(virtual, model, (batch,))))
