"""Offloaded storages through everything a training loop does: kept graphs, dropped graphs, errors, hooks."""

from __future__ import annotations

import copy
import errno
import os
from typing import Any

import pytest
import torch
from equivalence import assert_same_state, both, check, executors, pair
from nets import ConvNet, backward, images
from tiers import DISK, used_nbytes
from torch import nn

import vdnn
from vdnn.errors import LostHandle, TierFailed, TierFull
from vdnn.hardware.emulated import emulated

pytestmark = pytest.mark.any_device

KEEPS_ITS_GRAPH = pytest.mark.filterwarnings("ignore:[\\s\\S]*retain_graph=True:vdnn.errors.BudgetExceeded")
TIGHT: dict[str, Any] = {"budget": "85%", "hardware": DISK, "strategy": "offload"}


def test_a_module_called_just_in_time_trains_within_its_budget() -> None:
    plain, virtual = pair(ConvNet(), **TIGHT)
    for _ in range(3):
        both(plain, virtual, lambda model: backward(model, images()))
    assert_same_state(plain, virtual)
    (executor,) = executors(virtual)
    assert executor.plan.decisions


@pytest.mark.filterwarnings("ignore:[\\s\\S]*steps in flight:vdnn.errors.BudgetExceeded")
def test_several_forwards_before_their_backwards_keep_their_maps_apart() -> None:
    def train(model: Any) -> None:
        first, second = model(images(4)).sum(), model(images(4) * 2).sum()
        second.backward()
        first.backward()

    check(ConvNet(), train, **TIGHT)


@KEEPS_ITS_GRAPH
def test_a_kept_graph_fetches_again() -> None:
    def train(model: Any) -> None:
        loss = model(images()).sum()
        loss.backward(retain_graph=True)
        loss.backward()

    check(ConvNet(), train, **TIGHT)


def test_tiers_are_empty_after_a_step_and_after_a_dropped_graph() -> None:
    _, virtual = pair(ConvNet(), **TIGHT)
    backward(virtual, images())
    assert used_nbytes(virtual) == 0
    loss = virtual(images()).sum()
    assert used_nbytes(virtual) > 0
    del loss
    assert used_nbytes(virtual) == 0


def test_an_exception_between_forward_and_backward_leaves_nothing_behind() -> None:
    plain, virtual = pair(ConvNet(), **TIGHT)

    def stumble(model: Any) -> None:
        try:
            model(images()).sum()
            raise KeyError("user code")
        except KeyError:
            pass

    both(plain, virtual, stumble)
    assert used_nbytes(virtual) == 0
    both(plain, virtual, lambda model: backward(model, images()))
    assert_same_state(plain, virtual)


def test_a_hook_that_copies_saved_tensors_loses_the_handle_with_a_clear_error() -> None:
    _, virtual = pair(ConvNet(), **TIGHT)
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda tensor: tensor):
        loss = virtual(images()).sum()
    with pytest.raises(LostHandle, match="outside such hooks"):
        loss.backward()


@pytest.mark.parametrize("call", ["pwritev", "preadv"])
def test_an_io_error_fails_one_step_and_not_the_next(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    _, virtual = pair(ConvNet(), **TIGHT)
    backward(virtual, images())
    with monkeypatch.context() as broken:
        broken.setattr(os, call, fail)
        with pytest.raises(TierFailed, match="disk"):
            backward(virtual, images())
    backward(virtual, images())
    assert used_nbytes(virtual) == 0


def hold_graphs(model: Any, count: int) -> list[torch.Tensor]:
    return [model(images()).sum() for _ in range(count)]


def test_a_second_graph_that_overfills_a_tier_says_so_and_the_next_step_works() -> None:
    """A plan counts one step. Two graphs alive at once may need twice the room of a bounded tier."""
    _, virtual = pair(ConvNet(), budget="85%", hardware=emulated(disk=False), host_budget="10000B", strategy="offload")
    backward(virtual, images())
    with pytest.raises(TierFull, match="host tier"):
        hold_graphs(virtual, 50)
    backward(virtual, images())
    assert used_nbytes(virtual) == 0


@KEEPS_ITS_GRAPH
def test_backward_runs_twice_where_maps_linger_into_backward() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(64, 64), nn.Tanh())), nn.Linear(64, 10))
    x, y = torch.randn(512, 64), torch.randint(10, (512,))
    for options in ({"strategy": "offload"}, {"strategy": "superneurons"}, {}):
        plain = copy.deepcopy(model)
        virtual = vdnn.virtualize(copy.deepcopy(model), budget="70%", hardware=DISK, costs="roofline", **options)
        for net in (plain, virtual):
            loss = nn.functional.cross_entropy(net(x), y)
            loss.backward(retain_graph=True)
            loss.backward()
        pairs = zip(plain.parameters(), virtual.parameters(), strict=True)
        assert all(torch.equal(ours.grad, theirs.grad) for ours, theirs in pairs)
