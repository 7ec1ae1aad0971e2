"""Networks trained within a budget: the same bits as plain PyTorch, in exactly the bytes that were simulated."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from equivalence import assert_measured_as_simulated, assert_same, executors, train
from tiers import DISK, MACHINES, smallest_budget

import vdnn
from vdnn import models
from vdnn.errors import Infeasible
from vdnn.plan.model.budget import resolve_budget

NETWORKS = ("vgg16", "googlenet", "unet", "densenet121", "biglstm", "gpt2")
"""A chain, three that branch, one that recurs, one that attends."""

STRATEGIES = ("offload", "vdnn-all", "vdnn-conv", "vdnn-dyn")


def network(name: str) -> tuple[Any, torch.nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    spec = models.MODELS[name].small()
    return spec, spec.build(), spec.sample(2)


def check_budget(name: str, **options: Any) -> None:
    spec, model, args = network(name)
    twin = copy.deepcopy(model)
    virtual = vdnn.virtualize(spec.step(twin), sample=args, **options)
    assert_same(train(spec.step(model), model, args), train(virtual, twin, args))
    assert_measured_as_simulated(virtual)
    (executor,) = executors(virtual)
    assert executor.measured.timeline is not None
    assert executor.measured.timeline.peak_nbytes <= (executor.plan.problem.budget_nbytes or 0)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", NETWORKS)
def test_training_at_the_smallest_budget_is_exact(name: str, strategy: str, machine: str) -> None:
    spec, model, args = network(name)
    smallest = smallest_budget(spec.step(model), args, strategy, MACHINES[machine])
    check_budget(name, budget=smallest, strategy=strategy, device=MACHINES[machine])


@pytest.mark.parametrize("share", ["100%", "90%", "75%", "60%"])
@pytest.mark.parametrize("name", ["googlenet", "unet", "densenet121"])
def test_training_within_a_share_of_the_keep_all_peak_is_exact(name: str, share: str) -> None:
    spec, model, args = network(name)
    peak_nbytes = vdnn.plan(spec.step(model), args, device=DISK).peak_nbytes
    budget = resolve_budget(share, peak_nbytes) or 0
    if budget < smallest_budget(spec.step(model), args, "offload", DISK):
        pytest.skip(f"{share} of the keep-all peak is below what offloading alone can meet on this small {name}")
    check_budget(name, budget=share, device=DISK)


def test_a_budget_that_keeping_everything_meets_moves_nothing() -> None:
    spec, model, args = network("unet")
    assert vdnn.plan(spec.step(model), args, budget="100%", device=DISK).decisions == ()


def test_a_budget_below_the_minimum_says_what_would_work() -> None:
    spec, model, args = network("unet")
    with pytest.raises(Infeasible, match="Raise budget to at least") as caught:
        vdnn.virtualize(spec.step(model), sample=args, budget="1%", device=DISK)
    check_budget("unet", budget=caught.value.minimum_nbytes, device=DISK)
