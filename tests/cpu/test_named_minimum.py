"""The budget that a refusal names trains: whole iterations, with the loss outside of the model, without a warning."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor, nn

import vdnn
from larger import larger
from vdnn.api import session_of
from vdnn.errors import BudgetExceeded, Infeasible
from vdnn.runtime.step_memory.library import step_library

pytestmark = pytest.mark.any_device

NUM_STEPS = 4


class TiedLanguageModel(nn.Module):
    """The logits take most of its memory, and the loss outside three times as much."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(2000, 32)
        self.layers = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32))
        self.head = nn.Linear(32, 2000, bias=False)
        self.head.weight = self.words.weight

    def forward(self, words: Tensor) -> Tensor:
        embedded = self.words(words)
        return self.head(embedded + self.layers(embedded))


def perceptron() -> nn.Module:
    layers = [layer for _ in range(4) for layer in (nn.Linear(128, 128), nn.ReLU())]
    return nn.Sequential(nn.Linear(64, 128), *layers, nn.Linear(128, 10))


def segmenter() -> nn.Module:
    layers = [layer for _ in range(3) for layer in (nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())]
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), *layers, nn.Conv2d(16, 21, 1))


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(
        output.flatten(0, -2) if target.dtype == torch.int64 and output.dim() == 3 else output, target
    )


@dataclass(frozen=True)
class Training:
    make: Callable[[], nn.Module]
    batch: Callable[[], Tensor]
    target: Callable[[], Tensor]
    loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy


TRAININGS = {
    "perceptron": Training(perceptron, lambda: torch.randn(2048, 64), lambda: torch.randint(10, (2048,))),
    "segmenter": Training(segmenter, lambda: torch.randn(4, 3, 64, 64), lambda: torch.randint(21, (4, 64, 64))),
    "tied language model": Training(
        TiedLanguageModel, lambda: torch.randint(2000, (4, 128)), lambda: torch.randint(2000, (512,))
    ),
}


def counted(test: Callable[..., Any]) -> Callable[..., Any]:
    """Of what runs outside of a model."""
    has_arena = pytest.mark.skipif(step_library().functions is None, reason="what runs outside is not counted here")
    return has_arena(
        pytest.mark.cpu_only("what runs outside of a model is counted in an arena, which the CPU has")(test)
    )


def train(kind: Training, budget: Any) -> Any:
    torch.manual_seed(0)
    virtual = vdnn.virtualize(kind.make(), budget=budget)
    batch, target = kind.batch(), kind.target()
    optimizer = torch.optim.SGD(virtual.parameters(), lr=0.01)
    for _ in range(NUM_STEPS):
        optimizer.zero_grad()
        kind.loss(virtual(batch), target).backward()
        optimizer.step()
    return virtual


def refusal(kind: Training, budget: Any) -> Infeasible:
    with pytest.raises(Infeasible) as refused:
        train(kind, budget)
    return refused.value


def trains(kind: Training, budget: Any) -> bool:
    """Without a warning, and without a refusal at a later step."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", BudgetExceeded)
        try:
            train(kind, budget)
        except (Infeasible, BudgetExceeded):
            return False
    return True


@counted
@pytest.mark.parametrize("name", ["perceptron", "tied language model", *larger("segmenter")])
def test_the_budget_that_a_refusal_names_trains_and_much_less_does_not(name: str) -> None:
    kind = TRAININGS[name]
    named = refusal(kind, "4096B").minimum_nbytes
    assert trains(kind, named)
    assert not trains(kind, f"{named * 3 // 4}B")


def test_who_asked_for_a_share_is_told_one_that_trains() -> None:
    kind = TRAININGS["tied language model"]
    reason = refusal(kind, "2%")
    share = re.search(r"at least ([\d.]+%) of what keeping everything takes", str(reason))
    assert share is not None
    assert trains(kind, share[1])


@counted
def test_a_loss_that_takes_less_than_was_left_for_it_gives_its_room_back() -> None:
    """A mean holds one tensor of the size of the outputs, not three."""
    language, named = (
        TRAININGS["tied language model"],
        refusal(TRAININGS["tied language model"], "4096B").minimum_nbytes,
    )
    kind = Training(language.make, language.batch, language.target, lambda output, _: output.mean())
    virtual = train(kind, named)
    (executor,) = session_of(virtual).executors
    executor.before_step.__self__.wait()
    executor.before_step()  # between two steps another plan takes over
    assert session_of(virtual).seen.outside_nbytes > 0
    assert executor.plan.problem.surroundings.outside_nbytes == session_of(virtual).seen.outside_nbytes
