"""A module with two names keeps its tensors, whatever is captured of it."""

from __future__ import annotations

import copy

import pytest
import torch
from equivalence import plan, virtualize
from torch import Tensor, nn

pytestmark = pytest.mark.any_device


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(8, 8)
        self.decode = self.encode
        self.norm = nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        return self.decode(torch.tanh(self.norm(self.encode(x)))).square().sum()


def tensors(model: nn.Module) -> list[tuple[str, int]]:
    return [(name, id(tensor)) for name, tensor in (*model.named_parameters(), *model.named_buffers())]


def repeated() -> nn.Module:
    layer = nn.Linear(8, 8)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Tanh())


@pytest.mark.parametrize("make", [Tied, repeated])
def test_planning_leaves_a_model_as_it_was(make: type[nn.Module]) -> None:
    model, x = make(), torch.randn(4, 8)
    before = tensors(model)
    plan(lambda batch: model(batch).sum(), (x,))
    plan(model, (x,))
    assert tensors(model) == before
    model(x).sum().backward()


@pytest.mark.parametrize("make", [Tied, repeated])
def test_a_module_with_two_names_trains_as_plain(make: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model, x = make(), torch.randn(4, 8)
    plain, before = copy.deepcopy(model), tensors(model)
    virtual = virtualize(model, sample=(x,))
    for _ in range(2):
        for step in (plain, virtual):
            step(x).sum().backward()
    assert tensors(model) == before
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(plain.parameters(), model.parameters(), strict=True))


def test_a_function_may_name_a_model_and_its_parts() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4)), torch.randn(4, 8)
    body, head = model[:2], model[2]
    before = tensors(model)

    def step(batch: Tensor) -> Tensor:
        return head(body(batch)).sum() + model(batch).square().sum()

    step(x).backward()
    expected = [parameter.grad for parameter in model.parameters()]
    model.zero_grad(set_to_none=True)
    virtualize(step, sample=(x,))(x).backward()
    assert tensors(model) == before
    # Not bit for bit: gradients of one weight under two names are added in another order.
    assert all(torch.allclose(a, b.grad) for a, b in zip(expected, model.parameters(), strict=True))  # type: ignore[arg-type]
