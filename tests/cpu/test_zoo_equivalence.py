"""The networks of the zoo train through vdnn as they train without it, and take the bytes that were predicted.

Each network at toy widths, three steps, through both front ends. Where several names have the same
toy network one of them stands for all.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import pytest
from capture_once import captured_once
from equivalence import (
    assert_measured_as_simulated,
    assert_same,
    executors,
    train,
    virtualize,
    with_loss_outside,
)
from small_networks import BATCH, small_network
from torch import nn

from larger import all_but_larger, larger
from vdnn.models import MODELS

pytestmark = pytest.mark.any_device

STOOD_FOR = {"vgg116", "vgg216", "vgg316", "resnet101", "resnet152"}
"""Toys of the resnets are that of resnet50; those of the deep VGGs lie between vgg16's and vgg416's in depth."""

NAMES = tuple(name for name in MODELS if name not in STOOD_FOR)


@dataclass
class Case:
    """One network, its sample, and what plain PyTorch makes of them."""

    name: str

    def __post_init__(self) -> None:
        self.spec, self.model, self.args, self.expected = small_network(self.name)

    def copy_of_model(self) -> nn.Module:
        return copy.deepcopy(self.model)


@pytest.fixture
def case(request: pytest.FixtureRequest) -> Case:
    return Case(request.param)


AHEAD = ("alexnet-lrn", "vgg16", "resnet50", "googlenet", "unet", "gpt2", "vit", "biglstm")
"""One network of each kind; those like it are `make test-all`'s."""

WHEN_CALLED = ("unet", "vit")
"""Dynamo reads the Python of every layer: one network of each kind does, the rest is `make test-all`'s."""


def assert_trains_as_planned(case: Case, virtual: Any, step: Any, model: nn.Module) -> None:
    assert_same(case.expected, train(step, model, case.args))
    assert len(executors(virtual)) == 1
    assert_measured_as_simulated(virtual)


@pytest.mark.parametrize("case", all_but_larger(WHEN_CALLED, NAMES), indirect=True)
def test_a_step_captured_when_it_is_called_trains_as_planned(case: Case) -> None:
    model = case.copy_of_model()
    step = virtualize(case.spec.step(model), fullgraph=True)
    assert_trains_as_planned(case, step, step, model)


@pytest.mark.parametrize("case", all_but_larger(AHEAD, NAMES), indirect=True)
def test_a_step_captured_ahead_of_time_trains_as_planned(case: Case) -> None:
    model = case.copy_of_model()
    with captured_once(case.name, BATCH):
        step = virtualize(case.spec.step(model), sample=case.args)
    assert_trains_as_planned(case, step, step, model)


@pytest.mark.parametrize(
    "case", ["gpt2", *larger("alexnet-lrn", "resnet50", "densenet121", "unet", "vit")], indirect=True
)
@pytest.mark.parametrize("front_end", ["just in time", "ahead of time"])
def test_a_module_with_its_loss_outside_trains_as_planned(case: Case, front_end: str) -> None:
    sample = case.args[:-1] if front_end == "ahead of time" else None
    model = virtualize(case.copy_of_model(), sample=sample)
    assert_trains_as_planned(case, model, with_loss_outside(model, case.spec.loss), model)
