"""Ops that are run once: their workspaces are those of a measurement, and no trial takes more than its room."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiers import DISK

import vdnn
from vdnn.cost.cost_cache import CostCache
from vdnn.cost.measured import OpCall, OpVariant, Run, measure
from vdnn.cost.op_calls import is_pointwise
from vdnn.cost.table import CostTable, OpCost
from vdnn.cost.tried import OUTLINE, SCALED, TRIED, Trials
from vdnn.errors import Infeasible
from vdnn.units import KiB, MiB


@pytest.fixture
def cache(tmp_path: Path) -> CostCache:
    return CostCache(tmp_path / "costs.sqlite3")


class Needy:
    """An op that reads nothing, writes `out_nbytes` and needs a workspace; counts its runs."""

    def __init__(self, out_nbytes: int, workspace_nbytes: int) -> None:
        self.out_nbytes, self.workspace_nbytes, self.num_runs = out_nbytes, workspace_nbytes, 0

    def run(self) -> torch.Tensor:
        self.num_runs += 1
        result = torch.zeros(self.out_nbytes, dtype=torch.uint8)
        torch.empty(self.workspace_nbytes, dtype=torch.uint8)
        return result

    def call(self, variants: dict[str, Callable[[], torch.Tensor]] | None = None) -> OpCall:
        offered = variants or {}

        def make_variants(names: object) -> tuple[Run, dict[str, Run]]:
            return self.run, dict(offered)

        return OpCall(
            f"needy {self.out_nbytes}",
            lambda: self.run,
            tuple(OpVariant(name, lambda: (self.run, self.run)) for name in offered),
            make_variants=make_variants,
            family="needy",
            nbytes=self.out_nbytes,
            out_nbytes=self.out_nbytes,
        )


def tried(calls: list[OpCall | None], cache: CostCache, room_nbytes: int | None = None) -> Trials:
    outline = CostTable(tuple(OpCost(0.125) for _ in calls))
    return Trials(calls, outline, cache, room_nbytes=room_nbytes)


def test_a_workspace_is_true_after_one_trial_and_is_remembered(cache: CostCache):
    op = Needy(64 * KiB, 3 * MiB)
    first = tried([op.call(), None, op.call()], cache).costs
    assert [cost.workspace_nbytes for cost in first.ops] == [3 * MiB, 0, 3 * MiB]
    assert {cost.source for cost in first.ops} == {TRIED}
    runs = op.num_runs
    assert tried([op.call()], cache).costs[0] == first[0]
    assert op.num_runs == runs <= 2


def test_an_op_that_was_only_tried_is_measured_by_who_asks_for_measurements(cache: CostCache):
    op = Needy(64 * KiB, 0)
    tried([op.call()], cache)
    assert measure([op.call()], cache)[0].source != TRIED


def test_what_small_ops_need_says_whether_a_large_one_may_be_run(cache: CostCache):
    """Without the small one nobody would know that this family needs four times what it writes."""
    small, large = Needy(128 * KiB, 512 * KiB), Needy(4 * MiB, 16 * MiB)
    found = tried([large.call(), small.call()], cache, room_nbytes=12 * MiB)
    assert large.num_runs == 0
    assert found.costs[0] == OpCost(0.125, 16 * MiB, OUTLINE)
    found.try_rest(32 * MiB)
    assert found.costs[0].source == TRIED


def test_a_family_without_workspaces_may_fill_the_room(cache: CostCache):
    small, large = Needy(128 * KiB, 0), Needy(4 * MiB, 0)
    found = tried([large.call(), small.call()], cache, room_nbytes=4 * MiB)
    assert found.costs[0].source == TRIED


def test_variants_are_held_to_the_bits_of_the_op(cache: CostCache):
    op = Needy(64 * KiB, 8 * MiB)
    other = {
        "lean": lambda: torch.zeros(64 * KiB, dtype=torch.uint8),
        "wrong": lambda: torch.ones(64 * KiB, dtype=torch.uint8),
    }
    found = tried([op.call(other)], cache)
    assert found.variants() == {}
    found.try_variants(seconds=0.0)
    assert not found.is_complete(), "no time was given"
    found.try_variants()
    assert found.is_complete()
    assert {cost.variant for cost in found.variants()[0]} - {""} == {"lean"}


def test_a_second_shape_is_scaled_and_only_workspaces_are_looked_at_again(cache: CostCache):
    """Note: [A second shape]"""
    lean, needy = Needy(64 * KiB, 0), Needy(64 * KiB + 1, 2 * MiB)
    calls = [replace(lean.call(), family="lean"), needy.call()]
    first = tried(calls, cache)
    first.factors = {calls[1].key: 3.0}
    larger, needier = Needy(128 * KiB, 0), Needy(128 * KiB + 1, 5 * MiB)
    outline = CostTable((OpCost(0.25), OpCost(0.25)))
    again = Trials([replace(larger.call(), family="lean"), needier.call()], outline, cache, like=first)
    assert (larger.num_runs, needier.num_runs) == (0, 1)
    assert {cost.source for cost in again.costs.ops} == {SCALED}
    assert again.costs[0].seconds == pytest.approx(2 * first.costs[0].seconds)
    assert again.costs[1].seconds == pytest.approx(2 * 3 * first.costs[1].seconds)
    assert [cost.workspace_nbytes for cost in again.costs.ops] == [0, 5 * MiB]
    other = Trials([needier.call()], CostTable((OpCost(0.25),)), cache, like=first)
    assert not other.has_counterparts, "another program has none"


def test_workspaces_are_those_of_a_measurement():
    """The peak that a budget is a share of is the same either way."""
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 5), torch.nn.ReLU(), torch.nn.Conv2d(16, 8, 3))
    images = torch.randn(8, 3, 24, 24)
    plans = [vdnn.plan(model, (images,), budget="100%", costs=how, hardware=DISK) for how in ("tried", "measured")]
    one, other = ([cost.workspace_nbytes for cost in plan.problem.costs.ops] for plan in plans)
    assert one == other
    assert max(one) > 0
    assert plans[0].problem.budget_nbytes == plans[1].problem.budget_nbytes


def test_a_budget_that_needs_a_smaller_way_to_compute_an_op_is_still_met():
    """All ways are tried before a step is refused, whatever time that takes."""
    model = torch.nn.Sequential(torch.nn.Conv2d(16, 16, 3, padding=1), torch.nn.ReLU(), torch.nn.Flatten())
    images = torch.randn(16, 16, 32, 32)

    def least(how: str) -> int:
        with pytest.raises(Infeasible) as refusal:
            vdnn.plan(model, (images,), budget="1B", costs=how, hardware=DISK)
        return refusal.value.minimum_nbytes

    assert least("tried") == least("measured")


def test_an_elementwise_op_without_room_for_its_trial_is_expected_to_need_no_workspace(cache: CostCache) -> None:
    op = Needy(8 * MiB, 0)
    known, unknown = (
        tried([replace(op.call(), is_elementwise=is_elementwise)], cache, room_nbytes=4 * MiB).costs[0]
        for is_elementwise in (True, False)
    )
    assert (known.source, known.workspace_nbytes) == (OUTLINE, 0)
    assert (unknown.source, unknown.workspace_nbytes) == (OUTLINE, 8 * MiB)
    assert op.num_runs == 0


def test_what_pytorch_calls_pointwise_is_so_in_every_overload() -> None:
    names = ("threshold_backward", "pow", "relu_", "gelu_backward", "convolution", "_softmax", "native_layer_norm", "")
    assert [name for name in names if is_pointwise(name)] == ["threshold_backward", "pow", "relu_", "gelu_backward"]


def test_all_of_what_a_step_takes_is_enough_where_its_largest_op_has_no_room_to_be_tried() -> None:
    """The map behind the first convolution is most of what the step takes, so that no op on it can be tried within a
    part of that."""
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 64, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(64, 8, 3))
    images = torch.randn(8, 3, 96, 96)
    virtual = vdnn.virtualize(lambda images: model(images).square().mean(), budget="100%")
    virtual(images).backward()
    expected = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    model(images).square().mean().backward()
    assert all(map(torch.equal, expected, (p.grad for p in model.parameters())))


REFUSE_MADE_UP_INPUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "cholesky": lambda x: torch.linalg.cholesky(x @ x.T + 6 * torch.eye(6)),
    "solve": lambda x: torch.linalg.solve_ex(x + 6 * torch.eye(6), torch.ones(6, 2))[0],
    "segments": lambda x: torch.segment_reduce(x, "sum", lengths=torch.tensor([2, 4]), axis=0),
}


@pytest.mark.parametrize("name", REFUSE_MADE_UP_INPUTS)
def test_an_op_that_refuses_made_up_inputs_is_priced_as_expected(name: str) -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        return REFUSE_MADE_UP_INPUTS[name](x * 1.0).square().mean()

    x, y = (torch.linspace(0.5, 1.5, 36).reshape(6, 6).requires_grad_() for _ in range(2))
    step(x).backward()
    virtual = vdnn.virtualize(step, budget="100%")
    virtual(y).backward()
    assert torch.equal(x.grad, y.grad)  # type: ignore[arg-type]
    assert vdnn.report(virtual).eager is None  # it was captured and planned
