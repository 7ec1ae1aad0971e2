"""What an optimizer keeps counts into the budget of a step where it is named."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import vdnn
from vdnn.cli.training import make_optimizer
from vdnn.ir import Role
from vdnn.plan.model.optimizer_state import OPTIMIZERS

pytestmark = pytest.mark.any_device


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(32, 32), nn.ReLU())))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_state_that_counts_is_the_state_that_torch_keeps(name: str):
    model, batch = network(), torch.randn(256, 32)
    optimizer = make_optimizer(name, model, lr=0.01)
    step = vdnn.virtualize(lambda x: model(x).square().mean(), optimizer=name)
    for _ in range(2):
        optimizer.zero_grad()
        step(batch).backward()
        optimizer.step()
    (piece,) = vdnn.report(step).pieces
    kept = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, torch.Tensor)]
    assert piece.measured is not None
    assert piece.predicted.peak_nbytes == piece.measured.peak_nbytes
    counted = dict(piece.predicted.nbytes_by_role).get(Role.OPTIMIZER_STATE, 0)
    assert counted == sum(tensor.nbytes for tensor in kept)


def test_a_budget_without_room_for_the_state_is_refused():
    model, batch = network(), torch.randn(256, 32)

    def step(images: torch.Tensor) -> torch.Tensor:
        return model(images).square().mean()

    kept_nbytes = vdnn.plan(step, (batch,), strategy="keep-all").peak_nbytes
    virtual = vdnn.virtualize(step, budget=kept_nbytes, costs="roofline")
    virtual(batch).backward()
    parameters_nbytes = sum(parameter.nbytes for parameter in model.parameters())
    with pytest.raises(vdnn.errors.Infeasible) as caught:
        vdnn.virtualize(step, budget=f"{2 * parameters_nbytes}B", optimizer="adam", costs="roofline")(batch)
    assert caught.value.minimum_nbytes > 3 * parameters_nbytes
