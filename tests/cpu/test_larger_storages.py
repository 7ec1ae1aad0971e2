"""Storages that are larger than what they show, or than a trace says: counted, and where nobody knew, learned."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from equivalence import assert_measured_as_simulated, assert_same_state, executors, virtualize
from nets import EITHER_FRONT_END, Using, backward_of_each, options
from torch import Tensor, nn

from vdnn.capture import lower
from vdnn.errors import BudgetExceeded, Infeasible
from vdnn.units import Nbytes
from where import seeded

pytestmark = pytest.mark.any_device


def images() -> Tensor:
    return torch.randn(2, 3, 12, 12, generator=seeded(0))


def conv(**options: Any) -> nn.Module:
    return nn.Conv2d(3, 3, 3, padding=1, **options)


def put(x: Tensor) -> Tensor:
    """Into a part of a part: what is copied there begins somewhere inside its storage."""
    y = x * 2
    y[:, 1:, 2:5][:, :, 1] = x[:, 1:, 0]
    return y.square()


WITH_LARGER_STORAGES: dict[str, Callable[[Any, Tensor], Any]] = {
    "unfold": lambda self, x: (F.unfold(self.one(x), 3) * self.weights).sum(),
    "circular": lambda self, x: self.circular(self.one(x)).square().sum(),
    "fold": lambda self, x: F.fold(F.unfold(self.one(x), 3), (12, 12), 3).square().sum(),
    "mean square": lambda self, x: F.mse_loss(self.one(x), x),
    "smooth l1": lambda self, x: F.smooth_l1_loss(self.one(x), x).square(),
    "soft margin": lambda self, x: F.soft_margin_loss(self.one(x), x.sign()),
    "cross entropy of two": lambda self, x: F.binary_cross_entropy(self.one(x).sigmoid(), x.sigmoid()),
    "put": lambda self, x: put(self.one(x)).sum(),
}

WITH_VIEWS_FOR_OUTPUTS: dict[str, Callable[[Any, Tensor], Any]] = {
    "chunks": lambda self, x: self.one(x).chunk(3, 1),
    "a slice": lambda self, x: self.one(x)[:, :, ::2],
    "overlapping parts": lambda self, x: (self.one(x)[:, :2] * 1, self.one(x)[:, 1:]),
    "a row, transposed": lambda self, x: self.one(x).relu()[:, 1].transpose(1, 2),
    "part of the batch": lambda self, x: self.one(x)[:1],
}


def using(function: Callable[..., Any]) -> nn.Module:
    torch.manual_seed(0)
    parts = {"one": conv(), "circular": conv(padding_mode="circular"), "weights": torch.linspace(0, 1, 100)}
    return Using(function, **parts)


of_the_cpus_kernels = pytest.mark.cpu_only("what its kernels leave behind stands in a table; of others it is learned")


@of_the_cpus_kernels
@EITHER_FRONT_END
@pytest.mark.parametrize("name", WITH_LARGER_STORAGES)
def test_a_kernel_that_takes_more_than_it_shows_is_simulated_to_the_byte(front_end: str, name: str) -> None:
    plain = using(WITH_LARGER_STORAGES[name])
    model, x = copy.deepcopy(plain), images()
    plain(x).backward()
    virtual = virtualize(model, **options(front_end, x))
    loss = virtual(x)  # held, as a training loop holds it
    loss.backward()
    assert_same_state(plain, model)
    assert_measured_as_simulated(virtual)


@EITHER_FRONT_END
@pytest.mark.parametrize("name", WITH_VIEWS_FOR_OUTPUTS)
def test_gradients_of_views_are_simulated_to_the_byte(front_end: str, name: str) -> None:
    plain = using(WITH_VIEWS_FOR_OUTPUTS[name])
    model, x = copy.deepcopy(plain), images()
    backward_of_each(plain(x))
    virtual = virtualize(model, **options(front_end, x))
    outputs = virtual(x)
    backward_of_each(outputs)
    assert_same_state(plain, model)
    assert_measured_as_simulated(virtual)


@of_the_cpus_kernels
def test_a_folded_map_is_moved_and_encoded_with_all_of_its_storage() -> None:
    plain = using(lambda self, x: self.one(F.fold(F.unfold(self.one(x), 3), (12, 12), 3).relu()).square().sum())
    x = images()
    plain(x).backward()
    for strategy in ("vdnn-all", "gist"):
        model = copy.deepcopy(plain)
        model.zero_grad()
        virtualize(model, x, strategy=strategy)(x).backward()
        assert_same_state(plain, model)


@pytest.fixture
def nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if no table said what `col2im` leaves behind: the kernel itself is the real one."""
    monkeypatch.setattr(lower, "least_storage_nbytes", lambda node, storages: 0)


@of_the_cpus_kernels
@EITHER_FRONT_END
def test_a_step_above_its_budget_warns_and_is_planned_again(front_end: str, nothing_is_known: None) -> None:
    plain, x = using(WITH_LARGER_STORAGES["unfold"]), images()
    model = copy.deepcopy(plain)
    plain(x).backward()
    virtual = virtualize(model, budget="100%", **options(front_end, x))
    with pytest.warns(BudgetExceeded, match=r"col2im takes .* were planned[\s\S]*planned again"):
        virtual(x).backward()
    assert_same_state(plain, model)
    model.zero_grad()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        virtual(x).backward()
    assert_same_state(plain, model)
    (executor,) = executors(virtual)
    measured, budget_nbytes = executor.measured.timeline, executor.plan.problem.budget_nbytes
    assert measured is not None
    assert budget_nbytes is not None
    assert measured.peak_nbytes <= budget_nbytes


@of_the_cpus_kernels
def test_bytes_that_turn_out_too_few_are_refused_before_the_second_step(nothing_is_known: None) -> None:
    model, x = using(WITH_LARGER_STORAGES["unfold"]), images()
    least = executors(virtualize(model, x))[0].plan.peak_nbytes
    virtual = virtualize(model, x, budget=least)
    with pytest.warns(BudgetExceeded):
        virtual(x).backward()
    with pytest.raises(Infeasible):
        virtual(x)


def test_a_gradient_that_is_part_of_something_larger_is_learned() -> None:
    """The loss outside joins the outputs, so that their gradients arrive as looks into one tensor, with a third."""
    model, x = using(lambda self, x: self.one(x).relu()), images()
    least = executors(virtualize(model, x))[0].plan.peak_nbytes

    def loss(output: Tensor) -> Tensor:
        return torch.cat([output, torch.zeros(40, 3, 12, 12)]).square().sum()

    virtual = virtualize(model, x, budget=Nbytes(2 * least))
    with pytest.warns(BudgetExceeded, match="tangent"):
        loss(virtual(x)).backward()
    with pytest.raises(Infeasible):
        virtual(x)
