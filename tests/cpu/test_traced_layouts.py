"""Gradients whose layout PyTorch's tracer has wrong, and was once believed: they are the plain step's.

The backward of log-softmax returns a contiguous tensor whatever it is given, and fills one as if it were contiguous
whatever strides it has. Those of mean losses are contiguous too. `test_in_place_forms.py` compares every op that may
write over an input.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from equivalence import Step, assert_same, train, virtualize
from nets import EITHER_FRONT_END, Using, options
from torch import Tensor, nn

BATCH, LENGTH, NUM_WORDS = 4, 9, 50

LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "nll_loss": lambda x, y: F.nll_loss(x.log_softmax(-1).transpose(1, 2), y),
    "cross entropy": lambda x, y: F.cross_entropy(x.transpose(1, 2), y),
    "kl_div": lambda x, y: F.kl_div(
        x.log_softmax(-1).transpose(1, 2), torch.ones(BATCH, NUM_WORDS, LENGTH), reduction="batchmean"
    ),
    "gather": lambda x, y: x.log_softmax(-1).transpose(1, 2).gather(1, y[:, None]).mean(),
    "matmul": lambda x, y: (x.log_softmax(-1).transpose(1, 2) @ torch.linspace(0, 1, LENGTH)).mean(),
    "mul": lambda x, y: (x.log_softmax(-1).transpose(1, 2) * torch.linspace(0, 1, LENGTH)).mean(),
    "another dim": lambda x, y: F.nll_loss(x.permute(2, 0, 1).log_softmax(0).permute(1, 0, 2), y),
    "softmax": lambda x, y: (x.softmax(-1).transpose(1, 2) @ torch.linspace(0, 1, LENGTH)).square().mean(),
}


@EITHER_FRONT_END
@pytest.mark.parametrize("name", LOSSES)
def test_a_transposed_gradient(name: str, front_end: str) -> None:
    torch.manual_seed(0)
    model = Using(lambda self, x, y: LOSSES[name](self.last(x), y), last=nn.Linear(6, NUM_WORDS))
    args = torch.randn(BATCH, LENGTH, 6), torch.randint(NUM_WORDS, (BATCH, LENGTH))
    assert_trains_alike(model, args, front_end)


@EITHER_FRONT_END
def test_tokens_that_are_normed_and_become_channels(front_end: str) -> None:
    torch.manual_seed(0)
    parts = {"words": nn.Embedding(NUM_WORDS, 8), "norm": nn.LayerNorm(8), "last": nn.Conv1d(8, 8, 3, padding=1)}
    model = Using(lambda self, x: self.last(self.norm(self.words(x)).transpose(1, 2)).square().mean(), **parts)
    assert_trains_alike(model, (torch.randint(NUM_WORDS, (BATCH, LENGTH)),), front_end)


@EITHER_FRONT_END
@pytest.mark.parametrize("dim", [1, -1])
@pytest.mark.parametrize("function", [F.log_softmax, F.softmax])
def test_a_gradient_in_channels_last(function: Callable[..., Tensor], dim: int, front_end: str) -> None:
    torch.manual_seed(0)
    convolutions = {"one": nn.Conv2d(3, 5, 3), "other": nn.Conv2d(5, 4, 3)}
    model = Using(lambda self, x: self.other(function(self.one(x), dim)).square().mean(), **convolutions)
    args = (torch.randn(2, 3, 9, 8).to(memory_format=torch.channels_last),)
    assert_trains_alike(model.to(memory_format=torch.channels_last), args, front_end)


@EITHER_FRONT_END
@pytest.mark.parametrize("loss", [F.mse_loss, F.smooth_l1_loss, F.huber_loss])
@pytest.mark.parametrize("activation", [F.elu, F.hardsigmoid, F.hardtanh, F.softplus])
def test_images_in_channels_last_beside_contiguous_ones(activation: Step, loss: Step, front_end: str) -> None:
    torch.manual_seed(0)
    convolutions = {"one": nn.Conv2d(3, 8, 3, padding=1), "other": nn.Conv2d(8, 3, 3, padding=1)}
    model = Using(lambda self, x, y: loss(self.other(activation(self.one(x))), y), **convolutions)
    args = torch.randn(2, 3, 9, 8).to(memory_format=torch.channels_last), torch.randn(2, 3, 9, 8)
    assert_trains_alike(model.to(memory_format=torch.channels_last), args, front_end)


def assert_trains_alike(model: nn.Module, args: tuple[Tensor, ...], front_end: str) -> None:
    plain = copy.deepcopy(model)
    expected = train(plain, plain, args)
    assert_same(expected, train(virtualize(model, **options(front_end, *args)), model, args))
