"""Figures of plans, and rows of comparisons: sums that can be done by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pure import graphs
from pure.graphs import plan
from vdnn.plan import EncodeOffload, Offload, Recompute
from vdnn.plan.views.compared import by_budget, by_strategy
from vdnn.plan.views.plan_figures import figures, keep_all


def test_what_moves_is_counted_once_out_and_once_back() -> None:
    assert figures(plan(graphs.chain(4), {"a1": Offload("disk", 1, 5, 6)})).moved_nbytes == 200


def test_of_an_encoding_only_its_own_bytes_move() -> None:
    problem = graphs.problem(graphs.chain(8), lossy="fp16")
    assert figures(plan(problem, {"a5": EncodeOffload("fp16", 50, "host", 5, 6, 9, 10)})).moved_nbytes == 100


def test_what_is_computed_again_is_counted_in_ops_and_arithmetic() -> None:
    graph = graphs.chain(4)
    graph = replace(graph, ops=tuple(replace(op, flops=10 * moment) for moment, op in enumerate(graph.ops)))
    found = figures(plan(graph, {"a2": Recompute(2, 5)}))
    assert (found.num_replays, found.recomputed_flops) == (1, 10)


def test_keeping_everything_saves_and_loses_nothing() -> None:
    found = figures(keep_all(graphs.problem(graphs.chain(4), budget_nbytes=10)))
    assert (found.saved_nbytes, found.loss, found.actions) == (0, 0.0, {})


def test_the_loss_is_the_share_of_the_oracles_time() -> None:
    """Eight ops of a second, and one of them again."""
    found = figures(plan(graphs.chain(4), {"a2": Recompute(2, 5)}))
    assert found.loss == pytest.approx(1 / 8)


def test_actions_are_counted_by_kind() -> None:
    made = plan(graphs.chain(6), {"a1": Offload("host", 1, 9, 10), "a2": Recompute(2, 9), "a3": Recompute(3, 8)})
    assert figures(made).actions == {"offload": 1, "recompute": 2}


def test_a_strategy_that_fits_has_figures_and_one_that_does_not_has_a_reason() -> None:
    kept, moved = by_strategy(graphs.problem(graphs.chain(6), budget_nbytes=700), ("keep-all", "offload"))
    assert kept.figures is None
    assert kept.why_not.startswith("no 'keep-all' plan fits 700 B")
    assert moved.figures is not None
    assert moved.figures.peak_nbytes <= 700


def test_budgets_are_shares_of_the_keep_all_peak() -> None:
    problem = graphs.problem(graphs.chain(6))
    peak = keep_all(problem).peak_nbytes
    rows = list(by_budget(problem, "offload", shares=(100, 80)))
    assert [row.budget_nbytes for row in rows[:2]] == [peak, int(0.8 * peak)]


def test_the_last_budget_is_the_least_that_the_strategy_names() -> None:
    *_, least = by_budget(graphs.problem(graphs.chain(6)), "offload", shares=())
    assert least.figures is not None
    assert least.figures.peak_nbytes == least.budget_nbytes
    [below] = by_strategy(graphs.problem(graphs.chain(6), budget_nbytes=least.budget_nbytes - 1), ("offload",))  # type: ignore[operator]
    assert below.minimum_nbytes == least.budget_nbytes
