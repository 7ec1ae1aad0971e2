"""`auto` trains as plain PyTorch does, at every budget: bit for bit, within the bytes, measured as simulated.

Seven networks at toy width, budgets of 100, 75, 50, 35 and 25 % of keep-all as far as they are feasible, and the
smallest; on a machine whose links are fast, where most storages travel, and on one whose links are slow, where they are
recomputed and encoded.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from capture_once import captured_once
from equivalence import assert_measured_as_simulated, assert_same, executors, train
from tiers import DISK, smallest_budget
from torch import nn

import vdnn
from larger import larger
from vdnn.hardware.device import Hardware, Link, Tier
from vdnn.models import MODELS
from vdnn.units import Nbytes

pytestmark = pytest.mark.any_device

NETWORKS = ("vgg16", "resnet50", "googlenet", "densenet121", "unet", "vit", "gpt2")
SLOW = replace(DISK, name="RAM above a slow disk", links=(Link("device", "disk", 1e6), Link("disk", "device", 1e6)))
MACHINES = {"fast links": DISK, "slow links": SLOW}


@pytest.mark.slow
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", NETWORKS)
def test_auto_trains_the_plain_step_within_every_budget(name: str, machine: str) -> None:
    check_budgets(name, machine, shares=(100, 75, 50, 35, 25))


FEW = (("vgg16", "fast links"), ("vgg16", "slow links"), ("unet", "fast links"), ("vit", "slow links"))


@pytest.mark.parametrize(("name", "machine"), FEW)
def test_auto_trains_the_plain_step_within_half_of_the_peak_and_within_the_least(name: str, machine: str) -> None:
    check_budgets(name, machine, shares=(50,))


def check_budgets(name: str, machine: str, shares: Sequence[int]) -> None:
    torch.manual_seed(0)
    spec, device = MODELS[name].small(), MACHINES[machine]
    model, args = spec.build(), spec.sample(4)
    plain = copy.deepcopy(model)
    expected = train(spec.step(plain), plain, args, steps=2)
    with captured_once(name, 4):
        keep_all = vdnn.plan(spec.step(model), args, hardware=device).peak_nbytes
        least = smallest_budget(spec.step(model), args, "auto", device)
        for budget in map(Nbytes, sorted({max(least, keep_all * share // 100) for share in shares} | {least})):
            ours = copy.deepcopy(model)
            virtual = vdnn.virtualize(spec.step(ours), sample=args, budget=budget, hardware=device, costs="roofline")
            assert_same(expected, train(virtual, ours, args, steps=2))
            assert_measured_as_simulated(virtual)
            assert all(executor.plan.peak_nbytes <= budget for executor in executors(virtual))


@pytest.mark.parametrize("name", ["vit", *larger("gpt2")])
def test_auto_trains_a_step_that_is_captured_as_it_is_called(name: str) -> None:
    torch.manual_seed(0)
    spec = MODELS[name].small()
    model, args = spec.build(), spec.sample(4)
    plain = copy.deepcopy(model)
    budget = Nbytes(vdnn.plan(spec.step(model), args, hardware=DISK).peak_nbytes * 3 // 4)
    virtual = vdnn.virtualize(spec.step(model), budget=budget, hardware=DISK, costs="roofline")
    assert_same(train(spec.step(plain), plain, args, steps=2), train(virtual, model, args, steps=2))
    assert_measured_as_simulated(virtual)
    assert all(executor.plan.peak_nbytes <= budget for executor in executors(virtual))


def mechanisms(name: str, device: Hardware) -> set[str]:
    spec = MODELS[name].small()
    step, args = spec.step(spec.build()), spec.sample(4)
    with captured_once(name, 4):
        least = smallest_budget(step, args, "auto", device)
        peak = vdnn.plan(step, args, hardware=device).peak_nbytes
        plan = vdnn.plan(step, args, hardware=device, budget=Nbytes((least + peak) // 2))
    return {decision.action.kind for decision in plan.decisions}


@pytest.mark.parametrize("name", ["unet", *larger("resnet50")])
def test_fast_links_move_and_slow_links_recompute_or_encode(name: str) -> None:
    fast, slow = mechanisms(name, DISK), mechanisms(name, SLOW)
    assert "offload" in fast
    assert slow & {"recompute", "encode"}
    assert "offload" not in slow


ONE_TIER = Hardware("a board of its own", 1e11, 1e10, tiers=(Tier("device"),), links=())


@pytest.mark.parametrize("share", [0.5, *larger(0.9, 0.7)])
def test_auto_recomputes_in_stretches_where_nothing_can_be_away(share: float) -> None:
    """A chain made again at once would all be there at once."""
    torch.manual_seed(0)
    model = nn.Sequential(*(layer for _ in range(24) for layer in (nn.Linear(16, 16), nn.Tanh())))
    plain, batch = copy.deepcopy(model), (torch.randn(512, 16),)

    def loss_of(net: nn.Module) -> Any:
        return lambda x: net(x).square().mean()

    budget = Nbytes(vdnn.plan(loss_of(model), batch, strategy="keep-all", hardware=ONE_TIER).peak_nbytes * share)
    classic = vdnn.plan(loss_of(model), batch, strategy="checkpoint-sqrt", hardware=ONE_TIER)
    virtual = vdnn.virtualize(loss_of(model), sample=batch, budget=budget, hardware=ONE_TIER, costs="roofline")
    assert_same(train(loss_of(plain), plain, batch), train(virtual, model, batch))
    assert_measured_as_simulated(virtual)
    (executor,) = executors(virtual)
    assert executor.plan.peak_nbytes <= budget
    assert classic.peak_nbytes > budget or executor.plan.step_time_s <= classic.step_time_s
