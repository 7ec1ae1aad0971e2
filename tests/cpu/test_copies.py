"""Copies of a virtualized model, however they are made, and other ways to call it keep its budget or are refused."""

from __future__ import annotations

import copy
import inspect
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from equivalence import assert_same, executors, train, virtualize
from nets import EITHER_FRONT_END, options
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils.flop_counter import FlopCounterMode

import vdnn
from vdnn.errors import InvalidInput, Unsupported
from where import seeded

pytestmark = pytest.mark.any_device


class Summed(nn.Module):
    """With its loss inside, so that all of it is captured."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(8))
        self.norm, self.dropout = nn.BatchNorm1d(32), nn.Dropout(0.1)

    def forward(self, rows: Tensor) -> Tensor:
        for layer in self.layers:
            rows = torch.tanh(layer(rows))
        return self.dropout(self.norm(rows)).square().sum()


def batch() -> Tensor:
    return torch.randn(256, 32, generator=seeded(0))


def saved_and_loaded(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded: nn.Module = torch.load(file, weights_only=False)
    return loaded


def in_a_parent(model: nn.Module) -> nn.Module:
    (copied,) = copy.deepcopy(nn.Sequential(model))
    return copied


COPIES: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "torch.save and load": saved_and_loaded,
    "copy": copy.copy,
    "deepcopy of a parent": in_a_parent,
    "copy of a copy": lambda model: copy.deepcopy(pickle.loads(pickle.dumps(model))),
}


@EITHER_FRONT_END
@pytest.mark.parametrize("how", COPIES)
def test_a_copy_trains_within_the_same_budget(how: str, front_end: str) -> None:
    torch.manual_seed(0)
    plain, x = Summed(), batch()
    virtual = virtualize(copy.deepcopy(plain), budget="60%", **options(front_end, x))
    copied = COPIES[how](virtual)
    assert type(copied) is Summed
    assert copied.state_dict().keys() == plain.state_dict().keys()
    assert (copied.norm.weight is virtual.norm.weight) == (how == "copy")
    assert_same(train(plain, plain, (x,)), train(copied, copied, (x,)))
    (executor,) = executors(copied)
    measured = executor.measured.timeline
    assert measured is not None
    assert executor.plan.decisions
    assert measured.peak_nbytes <= executor.plan.problem.budget_nbytes
    assert vdnn.report(copied).budget_nbytes == executor.plan.problem.budget_nbytes


class LooksAtItsSum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(8))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
            if x.sum().item() > 1e9:
                x = x * 2
        return x


def test_a_copy_of_what_cannot_be_captured_trains_within_the_same_budget() -> None:
    torch.manual_seed(0)
    plain, x = LooksAtItsSum(), torch.randn(256, 32)

    def step(model: nn.Module) -> Callable[[Tensor], Tensor]:
        return lambda x: model(x).square().mean()

    virtual = virtualize(copy.deepcopy(plain), budget="70%")
    virtual(x).sum().backward()
    copied = copy.deepcopy(virtual)
    copied.zero_grad()
    assert_same(train(step(plain), plain, (x,)), train(step(copied), copied, (x,)))
    part = vdnn.report(copied).eager
    assert part is not None
    assert part.peak_nbytes <= part.budget_nbytes


def test_a_state_dict_goes_from_one_to_the_other() -> None:
    torch.manual_seed(0)
    plain, x = Summed(), batch()
    virtual = virtualize(Summed(), budget="60%")
    file = io.BytesIO()
    torch.save(plain.state_dict(), file)
    file.seek(0)
    virtual.load_state_dict(torch.load(file))
    assert_same(train(plain, plain, (x,)), train(virtual, virtual, (x,)))


def test_a_model_that_is_virtualized_again_has_the_new_options_and_so_have_its_copies() -> None:
    x = batch()
    virtual = virtualize(virtualize(Summed(), budget="60%"))
    for model in (virtual, copy.deepcopy(virtual)):
        model(x).backward()
        assert vdnn.report(model).budget_nbytes is None
        assert "forward" not in vars(model)


@EITHER_FRONT_END
def test_calling_forward_is_calling_the_model(front_end: str) -> None:
    torch.manual_seed(0)
    plain, x = Summed(), batch()
    model = copy.deepcopy(plain)
    virtual = virtualize(model, budget="60%", **options(front_end, x))
    assert inspect.signature(virtual.forward) == inspect.signature(plain.forward)
    assert_same(train(plain.forward, plain, (x,)), train(virtual.forward, model, (x,)))
    (executor,) = executors(virtual)
    assert executor.measured.num_forward == 3
    with torch.no_grad():
        assert torch.equal(virtual.forward(x), virtual(x)) or plain.training  # dropout draws anew
    assert executor.measured.num_forward == 3


def test_forward_is_refused_where_hooks_would_be_left_out() -> None:
    virtual = virtualize(Summed(), budget="60%")
    virtual.register_forward_hook(lambda *_: None)
    with pytest.raises(Unsupported, match=r"leaves out the hooks.*Call the module itself"):
        virtual.forward(batch())


@EITHER_FRONT_END
def test_a_virtual_model_inside_a_larger_one_is_captured_with_it(front_end: str) -> None:
    torch.manual_seed(0)
    x = batch()
    plain = nn.Sequential(nn.Linear(32, 32), Summed())
    model = copy.deepcopy(plain)
    model[1] = virtualize(model[1], budget="60%")
    virtual = virtualize(model, budget="70%", **options(front_end, x))
    assert_same(train(plain, plain, (x,)), train(virtual, model, (x,)))
    assert len(executors(virtual)) == 1
    with pytest.raises(InvalidInput):
        vdnn.report(model[1])


def test_under_a_dispatch_mode_a_model_runs_as_it_is_within_its_budget() -> None:
    """PyTorch captures nothing there."""
    torch.manual_seed(0)
    plain, x = Summed(), batch()
    model = copy.deepcopy(plain)
    virtual = virtualize(model, budget="70%")

    def counted(x: Tensor) -> Tensor:
        with FlopCounterMode(display=False):
            return virtual(x)

    assert_same(train(plain, plain, (x,)), train(counted, model, (x,)))
    part = vdnn.report(virtual).eager
    assert part is not None
    assert "FlopCounterMode" in part.reason
    assert part.peak_nbytes <= part.budget_nbytes


def test_functional_call_keeps_the_budget() -> None:
    torch.manual_seed(0)
    plain, x = Summed().eval(), batch()
    virtual = virtualize(copy.deepcopy(plain), budget="60%")
    found = []
    for model in (plain, virtual):
        given = {name: (parameter.detach() * 2).requires_grad_() for name, parameter in plain.named_parameters()}
        functional_call(model, given, (x,)).backward()
        found.append([tensor.grad for tensor in given.values()])
    assert all(map(torch.equal, *found))
    (executor,) = executors(virtual)
    assert executor.measured.timeline is not None
    assert executor.measured.timeline.peak_nbytes <= executor.plan.problem.budget_nbytes


@pytest.mark.parametrize("name", ["grad", "vmap"])
def test_function_transforms_are_refused(name: str) -> None:
    virtual, x = virtualize(Summed().eval(), budget="60%"), batch()
    given = {name: parameter.detach() for name, parameter in virtual.named_parameters()}

    def loss(given: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(virtual, given, (x,))

    with pytest.raises(Unsupported, match=r"inside torch\.func.*Call the plain model there"):
        grad(loss)(given, x) if name == "grad" else vmap(lambda each: loss(given, each[None]))(x)
