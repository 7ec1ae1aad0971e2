"""Every shape of a model that is captured is held by the interpreter, beside the steps of all the others."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from equivalence import executors
from torch import Tensor, nn

import vdnn
from vdnn.api import session_of
from vdnn.errors import BudgetExceeded
from vdnn.plan.model.surroundings import interpreter_nbytes
from vdnn.plan.shared.account import account_nbytes
from vdnn.units import MiB


class MeanSquare(nn.Module):
    """A loss inside of the model: nothing is held outside."""

    def forward(self, x: Tensor) -> Tensor:
        return x.square().mean()


def deep() -> nn.Sequential:
    """Of some 500 traced ops."""
    torch.manual_seed(0)
    return nn.Sequential(*(layer for _ in range(60) for layer in (nn.Linear(32, 32), nn.Tanh())), MeanSquare())


def train(virtual: nn.Module, batch: int) -> None:
    virtual(torch.randn(batch, 32)).backward()


def num_nodes_and_kept_nbytes() -> tuple[int, int]:
    virtual = vdnn.virtualize(deep(), budget="100%")
    train(virtual, 4096)
    (executor,) = executors(virtual)
    return session_of(virtual).num_nodes, executor.plan.problem.kept_nbytes or 0


def test_an_earlier_shape_is_planned_again_where_a_later_one_is_held_in_its_room() -> None:
    num_nodes, kept_nbytes = num_nodes_and_kept_nbytes()
    budget_nbytes = kept_nbytes + interpreter_nbytes(num_nodes) + MiB
    virtual = vdnn.virtualize(deep(), budget=budget_nbytes)
    train(virtual, 4096)
    (first,) = executors(virtual)
    before = first.plan
    for batch in (1024, 1024, 4096):  # a shape is captured when it comes back
        train(virtual, batch)
    around = first.plan.problem.surroundings
    assert around.interpreter_nbytes == interpreter_nbytes(num_nodes, num_nodes)
    assert account_nbytes(before, around) > budget_nbytes >= account_nbytes(first.plan, around)
    assert executors(virtual)[1].plan.problem.surroundings.interpreter_nbytes == around.interpreter_nbytes


def test_a_shape_for_which_others_leave_no_room_is_never_captured() -> None:
    num_nodes, kept_nbytes = num_nodes_and_kept_nbytes()
    virtual = vdnn.virtualize(deep(), budget=interpreter_nbytes(num_nodes) + kept_nbytes // 4)
    for batch in (4096, 4095, 4095, 4095):
        train(virtual, batch)
    assert len(executors(virtual)) == 1
    part = vdnn.report(virtual).eager
    assert part is not None
    assert part.num_steps == 3
    assert part.peak_nbytes <= part.budget_nbytes


def test_where_every_shape_is_captured_at_once_one_without_room_trains_and_says_so() -> None:
    num_nodes, kept_nbytes = num_nodes_and_kept_nbytes()
    virtual = vdnn.virtualize(deep(), budget=interpreter_nbytes(num_nodes) + kept_nbytes // 4, replan=False)
    train(virtual, 4096)
    with pytest.warns(BudgetExceeded, match="no plan within the budget beside what the interpreter holds for other"):
        train(virtual, 4095)


def test_a_model_that_is_captured_again_lets_go_of_what_was_captured() -> None:
    virtual = vdnn.virtualize(nn.Sequential(nn.Linear(32, 32), MeanSquare()), budget="100%")
    train(virtual, 8)
    (first,) = executors(virtual)
    gone, session = weakref.ref(first), session_of(virtual)
    session.seen.is_stale = True
    del first
    train(virtual, 8)
    gc.collect()
    assert gone() is None
