"""The networks of the zoo train through vdnn as they train without it, and take the bytes that were predicted.

Each network at toy widths, three steps, through both front ends. Where several names have the same
toy network one of them stands for all.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from equivalence import (
    Outcome,
    assert_measured_as_simulated,
    assert_same,
    executors,
    train,
    virtualize,
    with_loss_outside,
)
from torch import Tensor, nn

from vdnn.models import MODELS, ModelSpec

STOOD_FOR = {"vgg116", "vgg216", "vgg316", "resnet101", "resnet152"}
"""Toys of the resnets are that of resnet50; those of the deep VGGs lie between vgg16's and vgg416's in depth."""

NAMES = tuple(name for name in MODELS if name not in STOOD_FOR)


class Case:
    """One network, its sample, and what plain PyTorch makes of them: built once, it serves every test of a name."""

    def __init__(self, name: str) -> None:
        torch.manual_seed(0)
        self.spec: ModelSpec = MODELS[name].small()
        self.model = self.spec.build()
        self.args: tuple[Tensor, ...] = self.spec.sample(2)
        plain = copy.deepcopy(self.model)
        self.expected: Outcome = train(self.spec.step(plain), plain, self.args)

    def copy_of_model(self) -> nn.Module:
        return copy.deepcopy(self.model)


@pytest.fixture(scope="module")
def case(request: pytest.FixtureRequest) -> Case:
    return Case(request.param)


ZOO = pytest.mark.parametrize("case", NAMES, indirect=True)
SOME = pytest.mark.parametrize("case", ["alexnet-lrn", "resnet50", "densenet121", "unet", "vit", "gpt2"], indirect=True)


def assert_trains_as_planned(case: Case, virtual: Any, step: Any, model: nn.Module) -> None:
    assert_same(case.expected, train(step, model, case.args))
    assert len(executors(virtual)) == 1
    assert_measured_as_simulated(virtual)


@ZOO
def test_a_step_captured_when_it_is_called_trains_as_planned(case: Case) -> None:
    model = case.copy_of_model()
    step = virtualize(case.spec.step(model), fullgraph=True)
    assert_trains_as_planned(case, step, step, model)


@ZOO
def test_a_step_captured_ahead_of_time_trains_as_planned(case: Case) -> None:
    model = case.copy_of_model()
    step = virtualize(case.spec.step(model), sample=case.args)
    assert_trains_as_planned(case, step, step, model)


@SOME
@pytest.mark.parametrize("front_end", ["just in time", "ahead of time"])
def test_a_module_with_its_loss_outside_trains_as_planned(case: Case, front_end: str) -> None:
    sample = case.args[:-1] if front_end == "ahead of time" else None
    model = virtualize(case.copy_of_model(), sample=sample)
    assert_trains_as_planned(case, model, with_loss_outside(model, case.spec.loss), model)
