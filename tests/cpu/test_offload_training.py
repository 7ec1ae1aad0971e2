"""Networks trained within a budget: the same bits as plain PyTorch, in exactly the bytes that were simulated."""

from __future__ import annotations

import copy
from itertools import product
from typing import Any

import pytest
from capture_once import captured_once
from equivalence import assert_measured_as_simulated, assert_same, executors, train
from small_networks import small_network
from tiers import DISK, MACHINES, smallest_budget

import vdnn
from larger import all_but_larger, larger
from vdnn.errors import Infeasible
from vdnn.plan.model.budget import resolve_budget

pytestmark = pytest.mark.any_device

NETWORKS = ("vgg16", "googlenet", "unet", "densenet121", "biglstm", "gpt2")
"""A chain, three that branch, one that recurs, one that attends."""

STRATEGIES = ("offload", "vdnn-all", "vdnn-conv", "vdnn-dyn")


def check_budget(name: str, **options: Any) -> None:
    spec, model, args, expected = small_network(name)
    twin = copy.deepcopy(model)
    virtual = vdnn.virtualize(spec.step(twin), sample=args, **options)
    assert_same(expected, train(virtual, twin, args))
    assert_measured_as_simulated(virtual)
    (executor,) = executors(virtual)
    assert executor.measured.timeline is not None
    assert executor.measured.timeline.peak_nbytes <= (executor.plan.problem.budget_nbytes or 0)


FEW = (
    ("vgg16", "vdnn-conv", "disk"),
    ("unet", "vdnn-conv", "three tiers"),
    ("unet", "vdnn-all", "disk"),
    ("vgg16", "vdnn-all", "three tiers"),
    ("biglstm", "offload", "disk"),
    ("gpt2", "offload", "three tiers"),
    ("vgg16", "vdnn-dyn", "three tiers"),
    ("unet", "vdnn-dyn", "disk"),
)
"""Every strategy on every machine; a chain, one that branches, one that recurs, one that attends."""


@pytest.mark.parametrize(("name", "strategy", "machine"), all_but_larger(FEW, product(NETWORKS, STRATEGIES, MACHINES)))
def test_training_at_the_smallest_budget_is_exact(name: str, strategy: str, machine: str) -> None:
    spec, model, args, _ = small_network(name)
    with captured_once(name, 2):
        smallest = smallest_budget(spec.step(model), args, strategy, MACHINES[machine])
        check_budget(name, budget=smallest, strategy=strategy, hardware=MACHINES[machine])


@pytest.mark.parametrize("share", ["75%", *larger("100%", "90%", "60%")])
@pytest.mark.parametrize("name", ["unet", *larger("googlenet", "densenet121")])
def test_training_within_a_share_of_the_keep_all_peak_is_exact(name: str, share: str) -> None:
    spec, model, args, _ = small_network(name)
    with captured_once(name, 2):
        peak_nbytes = vdnn.plan(spec.step(model), args, hardware=DISK).peak_nbytes
        budget = resolve_budget(share, peak_nbytes) or 0
        if budget < smallest_budget(spec.step(model), args, "offload", DISK):
            pytest.skip(f"{share} of the keep-all peak is below what offloading alone can meet on this small {name}")
        check_budget(name, budget=share, hardware=DISK)


def test_a_budget_that_keeping_everything_meets_moves_nothing() -> None:
    spec, model, args, _ = small_network("unet")
    with captured_once("unet", 2):
        assert vdnn.plan(spec.step(model), args, budget="100%", hardware=DISK).decisions == ()


def test_a_budget_below_the_minimum_says_what_would_work() -> None:
    spec, model, args, _ = small_network("unet")
    with captured_once("unet", 2):
        with pytest.raises(Infeasible, match="Raise budget to at least") as caught:
            vdnn.virtualize(spec.step(model), sample=args, budget="1%", hardware=DISK)
        check_budget("unet", budget=caught.value.minimum_nbytes, hardware=DISK)
