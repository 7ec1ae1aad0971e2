"""A shape that is new to a model trains at once, as it is, within the budget; one that comes back is captured."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from equivalence import assert_same_state, executors
from nets import EITHER_FRONT_END, options
from torch import Tensor, nn

import vdnn
from vdnn.compile import session as sessions
from vdnn.errors import BudgetExceeded, Infeasible
from vdnn.report.record import Report
from where import risen_nbytes, seeded

pytestmark = pytest.mark.any_device


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(12))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = self.dropout(torch.tanh(layer(x)))
        return x.square().mean()


def rows(batch: int) -> Tensor:
    return torch.randn(batch, 32, generator=seeded(batch))


def made(front_end: str = "just in time", budget: str = "70%", **others: Any) -> tuple[nn.Module, Any]:
    """A plain model, and one that begins as it does and was captured for 512 rows."""
    torch.manual_seed(0)
    plain = Deep()
    virtual = vdnn.virtualize(copy.deepcopy(plain), budget=budget, **options(front_end, rows(512)), **others)
    virtual(rows(512)).backward()
    virtual.zero_grad()
    return plain, virtual


def train_both(plain: nn.Module, virtual: nn.Module, batch: int) -> None:
    for model in (plain, virtual):
        model.zero_grad()
        torch.manual_seed(1)
        model(rows(batch)).backward()
    assert_same_state(plain, virtual)


@EITHER_FRONT_END
def test_it_is_captured_when_it_comes_back_and_has_the_same_gradients_before(front_end: str) -> None:
    plain, virtual = made(front_end)
    for batch, num_captured in ((300, 1), (700, 1), (512, 1), (300, 2), (300, 2), (700, 3)):
        train_both(plain, virtual, batch)
        assert len(executors(virtual)) == num_captured, batch


def test_the_report_says_that_new_shapes_ran_as_they_are() -> None:
    plain, virtual = made()
    train_both(plain, virtual, 700)
    report = vdnn.report(virtual)
    assert report.eager is not None
    assert report.eager.peak_nbytes <= report.eager.budget_nbytes
    assert "Deep met new shapes and ran them as it is, in a tensor cache within" in " ".join(str(report).split())
    assert report.strategy == "auto"
    assert Report.from_json(report.to_json()) == report


def test_it_stays_within_the_budget_as_the_allocator_counts() -> None:
    """60 % of what the plain step takes by the same count."""
    x = rows(4096)
    torch.manual_seed(0)
    plain = Deep()
    virtual = vdnn.virtualize(copy.deepcopy(plain), budget="60%")
    virtual(rows(4000)).backward()
    virtual.zero_grad()
    state_nbytes = sum(t.numel() * t.element_size() for t in (*plain.parameters(), x))
    plain_nbytes, nbytes = (
        state_nbytes + risen_nbytes(lambda model=model: model(x).backward()) for model in (plain, virtual)
    )
    assert nbytes <= 0.61 * plain_nbytes
    assert len(executors(virtual)) == 1
    part = vdnn.report(virtual).eager
    assert part is not None
    assert part.sent_nbytes + part.num_encoded > 0, "less room would have been enough"


@pytest.mark.cpu_only("the interpreter takes bytes of a budget where both are in RAM")
def test_a_shape_that_is_too_large_for_the_cache_is_captured_at_once() -> None:
    """Of eight times as many rows, not even the tensors that one op reads and writes fit beside the interpreter."""
    virtual = vdnn.virtualize(Deep(), budget="16MiB")
    virtual(rows(512)).backward()
    with pytest.raises(Infeasible):
        virtual(rows(4096))
    assert vdnn.report(virtual).eager is None


def test_a_shape_that_comes_while_a_step_waits_for_its_backward_is_captured_at_once() -> None:
    plain, virtual = made(budget="200%")
    for model in (plain, virtual):
        torch.manual_seed(1)
        (model(rows(512)) + model(rows(300))).backward()
    assert_same_state(plain, virtual)
    assert len(executors(virtual)) == 2


def test_a_planned_step_beside_one_that_waits_in_the_cache_warns() -> None:
    plain, virtual = made()
    torch.manual_seed(1)
    waiting = virtual(rows(300))
    with pytest.warns(BudgetExceeded, match=r"Deep begins a step while one of a shape that came for the first time"):
        both = waiting + virtual(rows(512))
    both.backward()
    torch.manual_seed(1)
    (plain(rows(300)) + plain(rows(512))).backward()
    assert_same_state(plain, virtual)


def test_a_stream_of_new_shapes_trains_past_the_most_that_are_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MAX_CAPTURES", 2)
    plain, virtual = made()
    for batch in (300, 300, 301, 301, 302, 302):
        train_both(plain, virtual, batch)
    assert len(executors(virtual)) == 2


@pytest.mark.parametrize("how", [{"replan": False}, {"costs": "roofline"}, {"in_flight": 2}])
def test_who_asks_for_one_plan_has_every_shape_captured_at_once(how: dict[str, Any]) -> None:
    _, virtual = made(budget="200%", **how)
    virtual(rows(300)).backward()
    assert len(executors(virtual)) == 2


def test_without_a_budget_every_shape_is_captured_at_once() -> None:
    virtual = vdnn.virtualize(Deep())
    for batch in (512, 300):
        virtual(rows(batch)).backward()
    assert len(executors(virtual)) == 2
