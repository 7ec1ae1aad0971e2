"""What changes between two calls of a step that was captured ahead of time: it is captured again, or never mattered."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from equivalence import executors, virtualize
from torch import Tensor, nn

from where import seeded

pytestmark = pytest.mark.any_device


class Configured(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.config, self.scales, self.activation = SimpleNamespace(power=1, bias=0.0), [1.0, 2.0], torch.sin
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        y = self.activation(self.layer(x)) ** self.config.power
        return (y * self.scales[0] + self.config.bias).sum() * self.scales[1]


def another_forward(model: Configured) -> Callable[[Tensor], Tensor]:
    return lambda x: model.layer(x).exp().sum()


CHANGES: dict[str, Callable[[Configured], Any]] = {
    "a configuration object": lambda model: setattr(model.config, "power", 2),
    "a list": lambda model: model.scales.__setitem__(0, 3.0),
    "a function": lambda model: setattr(model, "activation", torch.cos),
    "forward": lambda model: setattr(model, "forward", another_forward(model)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_setting_that_changed_is_seen(change: str) -> None:
    torch.manual_seed(0)
    model, x = Configured(), torch.randn(4, 8)
    virtual = virtualize(model, sample=(x,))
    before = virtual(x)
    CHANGES[change](virtual)  # type: ignore[arg-type]
    changed = virtual(x)
    assert not torch.equal(changed, before)
    assert torch.equal(changed, virtual.forward(x))


def test_a_list_of_tensors_that_grows_is_no_setting() -> None:
    model, x = Configured(), torch.randn(4, 8)
    virtual = virtualize(model, sample=(x,))
    for _ in range(3):
        virtual.seen.append(torch.zeros(2))
        virtual(x)
    assert len(executors(virtual)) == 1


def test_a_long_table_is_no_setting() -> None:
    """It would be read through at every call."""
    model, x = Configured(), torch.randn(4, 8)
    virtual = virtualize(model, sample=(x,))
    for number in range(2):
        virtual.vocabulary = dict.fromkeys(range(1000), number)
        virtual(x)
    assert len(executors(virtual)) == 2  # one with the attribute, one without


def test_arguments_that_overlap_at_another_distance_are_another_step() -> None:
    layer, memory = nn.Linear(4, 4), torch.randn(64, 4)

    def step(a: Tensor, b: Tensor) -> Tensor:
        a.mul_(2)
        return torch.sin(layer(b)).sum()

    virtual = virtualize(step, sample=(memory.clone()[:8], memory[4:12]))
    for first, second in ((0, 4), (0, 24), (0, 2), (8, 40), (5, 5)):
        ours, theirs = memory.clone(), memory.clone()
        got = virtual(ours[first : first + 8], ours[second : second + 8])
        assert torch.equal(got, step(theirs[first : first + 8], theirs[second : second + 8]))
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("strategy", ["keep-all", "recompute-memory", "superneurons"])
def test_a_generator_of_the_models_own_draws_as_in_eager(strategy: str) -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
            self.generator = seeded(3)

        def forward(self, x: Tensor) -> Tensor:
            h = torch.tanh(self.first(x))
            return self.second(torch.sin(h * torch.rand(h.shape, generator=self.generator))).square().sum()

    outcomes = []
    for wrap in (lambda model, x: model, lambda model, x: virtualize(model, sample=(x,), strategy=strategy)):
        torch.manual_seed(0)
        model, x = Noisy(), torch.randn(4, 8)
        step = wrap(model, x)
        model.generator.manual_seed(3)
        losses = []
        for _ in range(2):
            losses.append(step(x))
            losses[-1].backward()
        grads = [parameter.grad for parameter in model.parameters()]
        outcomes.append([*losses, *grads, model.generator.get_state()])
    assert all(map(torch.equal, *outcomes))
