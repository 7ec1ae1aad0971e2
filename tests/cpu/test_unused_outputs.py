"""Outputs that the loss does not hang on: their gradients are absent, as in eager mode."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from equivalence import (
    assert_measured_as_simulated,
    assert_same,
    assert_same_state,
    both,
    executors,
    pair,
    train,
    virtualize,
)
from nets import EITHER_FRONT_END, options
from torch import Tensor, nn

from vdnn.units import KiB

pytestmark = pytest.mark.any_device


class TwoHeads(nn.Module):
    """Two outputs of a common trunk, each with a head of its own, one of them a view."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.left, self.right = nn.Linear(8, 8), nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.trunk(x).sin()
        return self.left(hidden).cos(), self.right(hidden).view(-1, 2, 2)


def uses(*sides: int) -> Callable[[Any, Tensor], Tensor]:
    def loss(model: Any, x: Tensor) -> Tensor:
        outputs = model(x)
        return torch.stack([(outputs[side] * outputs[side]).sum() for side in sides]).sum()

    return loss


X = torch.linspace(-1, 1, 32).view(4, 8)


@EITHER_FRONT_END
@pytest.mark.parametrize("sides", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("bound", [{}, {"budget": "100%"}], ids=["no budget", "budget"])
def test_what_only_feeds_an_unused_output_has_no_gradient(
    bound: dict[str, Any], sides: tuple[int, ...], front_end: str
) -> None:
    model = TwoHeads()
    virtual = virtualize(copy.deepcopy(model), **options(front_end, X), **bound)
    loss = uses(*sides)
    expected = train(lambda x: loss(model, x), model, (X,))
    assert_same(expected, train(lambda x: loss(virtual, x), virtual, (X,)))
    unused = [head for side, head in enumerate((virtual.left, virtual.right)) if side not in sides]
    assert all(head.weight.grad is None for head in unused)


def test_steps_may_use_other_outputs_than_the_steps_before() -> None:
    plain, virtual = pair(TwoHeads())

    def steps(model: Any) -> None:
        for sides in ((0,), (0,), (1,), (0, 1), (0,), (1, 0)):
            model.zero_grad()
            uses(*sides)(model, X).backward()

    both(plain, virtual, steps)
    assert_same_state(plain, virtual)


def test_one_forward_may_have_a_backward_from_each_output() -> None:
    plain, virtual = pair(TwoHeads())

    def steps(model: Any) -> None:
        for _ in range(3):
            left, right = model(X)
            left.sum().backward(retain_graph=True)
            right.sin().sum().backward()

    both(plain, virtual, steps)
    assert_same_state(plain, virtual)


class WithLogits(nn.Module):
    """A language model that returns its logits beside the loss."""

    def __init__(self, words: int = 512) -> None:
        super().__init__()
        self.embedding, self.layer, self.head = nn.Embedding(words, 16), nn.Linear(16, 16), nn.Linear(16, words)
        self.dropout = nn.Dropout(0.1)

    def forward(self, words: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = self.dropout(self.layer(self.embedding(words)).sin())
        logits = self.head(hidden)
        return nn.functional.cross_entropy(logits[:-1], words[1:]), logits, hidden


WORDS = torch.arange(256) * 7 % 512


def left_out(virtual: Any) -> int:
    (executor,) = executors(virtual)
    return executor.edition.tangents.left_out


@EITHER_FRONT_END
@pytest.mark.parametrize("bound", [{}, {"budget": "100%"}], ids=["no budget", "budget"])
def test_logits_that_are_returned_have_no_gradient_in_the_plan(bound: dict[str, Any], front_end: str) -> None:
    plain = WithLogits()
    virtual: Any = virtualize(copy.deepcopy(plain), **options(front_end, WORDS), **bound)
    expected = train(plain, plain, (WORDS,), steps=1)
    assert_same(expected, train(virtual, virtual, (WORDS,), steps=1))
    before_nbytes = executors(virtual)[0].plan.peak_nbytes
    expected = train(plain, plain, (WORDS,))
    assert_same(expected, train(virtual, virtual, (WORDS,)))
    assert left_out(virtual) == 0b110, "of the logits and of the hidden states"
    (executor,) = executors(virtual)
    entering = [storage.nbytes for storage in executor.plan.problem.graph.storages if "tangent" in storage.name]
    assert entering == [4], "of the loss alone"
    assert before_nbytes - executor.plan.peak_nbytes > 400 * KiB, "the logits take 512"
    assert_measured_as_simulated(virtual)


@pytest.mark.parametrize("bound", [{}, {"budget": "8MiB"}], ids=["no budget", "budget"])
def test_a_gradient_that_was_left_out_may_come_after_all(bound: dict[str, Any], caplog: Any) -> None:
    plain, virtual = pair(WithLogits(), **bound)

    def steps(model: Any) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for uses_logits in (False, False, True, False, True, True):
            optimizer.zero_grad()
            loss, logits, _ = model(WORDS)
            (loss + logits.square().mean() if uses_logits else loss).backward()
            optimizer.step()

    both(plain, virtual, steps)
    assert_same_state(plain, virtual)
    assert "computed twice" in caplog.text
    assert left_out(virtual) == 0, "once is enough"
