"""An op may be computed in several ways: the plan chooses, and bytes, seconds, checks and files follow the choice."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pure import graphs
from vdnn.cost.table import OpCost
from vdnn.errors import Infeasible
from vdnn.plan import Plan, Problem, Recompute, from_json, simulate, solve, to_json, violations
from vdnn.plan.judge.walk import walk
from vdnn.plan.shared.workspaces import exact_only, fitting_variants, inexact_ops
from vdnn.plan.strategy_table import solve_with_workspaces

FAST, SMALL = OpCost(0.25, 70, "fast"), OpCost(2.0, 0, "small")


def problem() -> Problem:
    """chain(3) at a second and ten bytes of workspace per op; its busiest op 3 has two other algorithms."""
    plain = graphs.problem(graphs.chain(3), workspace_nbytes=10)
    return replace(plain, variants={3: (FAST, SMALL)})


def plan(**variants: int) -> Plan:
    return Plan(problem(), "by hand", variants={int(moment[1:]): chosen for moment, chosen in variants.items()})


def test_an_op_that_is_not_listed_costs_what_the_table_says() -> None:
    assert (plan().peak_nbytes, plan().step_time_s) == (650, 6.0)


def test_the_fast_alternative_takes_its_own_time_and_workspace() -> None:
    assert (plan(s3=0).peak_nbytes, plan(s3=0).step_time_s) == (710, 5.25)


def test_the_small_alternative_moves_the_peak() -> None:
    timeline = simulate(plan(s3=1))
    assert (timeline.peak_nbytes, timeline.duration_s) == (640, 7.0)


@pytest.mark.parametrize("chosen", [0, 1])
def test_the_validator_counts_the_chosen_workspace_too(chosen: int) -> None:
    assert walk(plan(s3=chosen)).peak_nbytes == plan(s3=chosen).peak_nbytes


@pytest.mark.parametrize(("moment", "chosen"), [(3, 2), (3, -1), (1, 0), (99, 0)])
def test_an_alternative_that_is_not_offered_is_a_violation(moment: int, chosen: int) -> None:
    (complaint,) = violations(Plan(problem(), "by hand", variants={moment: chosen}))
    assert f"op {moment} takes alternative {chosen}, but the problem offers {2 if moment == 3 else 0}" in complaint


@pytest.mark.parametrize("offered", [{3: ()}, {3: (SMALL, FAST)}, {6: (FAST,)}])
def test_alternatives_are_some_of_an_op_that_exists_and_the_fastest_comes_first(
    offered: dict[int, tuple[OpCost, ...]],
) -> None:
    with pytest.raises(ValueError, match=r"variants of op"):
        replace(problem(), variants=offered)


def test_offered_and_chosen_alternatives_survive_a_file() -> None:
    noted = replace(plan(s3=1), note="pass 7")
    assert from_json(to_json(noted)) == noted


def test_a_file_without_alternatives_is_as_it_was_before_there_were_any() -> None:
    document = to_json(graphs.plan(graphs.chain(3)))
    assert {"variants", "offered_variants", "note"} & set(document) == set()
    assert from_json(document).variants == {}


def test_a_summary_says_that_algorithms_were_chosen_and_what_the_strategy_notes() -> None:
    lines = str(replace(plan(s3=0), note="pass 2")).splitlines()
    assert lines[-2:] == ["variants chosen for 1 ops, workspace up to 70 B", "pass 2"]


INEXACT = OpCost(0.1, 80, "test", "sums-4", exact=False)


def within(budget_nbytes: int | None, **variants: int) -> Plan:
    chosen = plan(**variants)
    return replace(chosen, problem=replace(chosen.problem, budget_nbytes=budget_nbytes))


@pytest.mark.parametrize(("budget_nbytes", "chosen"), [(710, 0), (709, 1), (650, 1)])
def test_the_fastest_alternative_that_fits_the_budget_is_taken(budget_nbytes: int, chosen: int) -> None:
    assert fitting_variants(within(budget_nbytes, s3=1)).variants == {3: chosen}


def test_without_a_budget_speed_does_not_raise_the_peak() -> None:
    assert fitting_variants(within(None, s3=1)).variants == {3: 1}
    assert fitting_variants(within(None, s3=0)).variants == {3: 0}


def test_an_alternative_has_to_fit_where_its_op_runs_again_too() -> None:
    """Layer 1 runs at moment 0 with much room, and again in backward with less."""
    again = graphs.plan(graphs.problem(graphs.chain(3), budget_nbytes=600), {"a1": Recompute(leave=1, back=4)})
    run_at, replay_at = (next(k for k, label in enumerate(again.timeline.labels) if label == name) for name in _RUNS)
    free_nbytes = 600 - again.timeline.total()[[run_at, replay_at]]
    between = OpCost(0.5, int(free_nbytes.mean()), "test")
    assert free_nbytes[0] > between.workspace_nbytes > free_nbytes[1]
    offered = replace(again.problem, variants={0: (between, SMALL)})
    assert fitting_variants(replace(again, problem=offered, variants={0: 1})).variants == {0: 1}


_RUNS = ("layer1", "replay layer1")


@pytest.mark.parametrize("strategy", ["keep-all", "offload", "recompute-speed", "checkpoint-sqrt", "gist"])
def test_every_strategy_meets_a_budget_that_only_the_small_alternative_meets(strategy: str) -> None:
    chain = replace(problem(), budget_nbytes=640)
    chosen = solve_with_workspaces(chain, strategy)
    assert violations(chosen) == []
    assert chosen.problem.costs == chain.costs


def test_a_strategy_alone_would_have_declined() -> None:
    with pytest.raises(Infeasible):
        solve(replace(problem(), budget_nbytes=640), "keep-all")


@pytest.mark.parametrize(("strategy", "chosen"), [("vdnn-all(m)", 1), ("vdnn-all(p)", 0)])
def test_a_policy_that_names_its_algorithms_keeps_them(strategy: str, chosen: int) -> None:
    assert solve_with_workspaces(replace(problem(), budget_nbytes=10_000), strategy).variants == {3: chosen}


def test_the_name_of_an_alternative_and_what_it_does_to_bits_survive_a_file() -> None:
    named = replace(problem(), variants={3: (INEXACT, FAST)})
    assert from_json(to_json(Plan(named, "by hand", variants={3: 0}))).problem == named


def test_a_summary_says_how_many_ops_are_not_exact() -> None:
    rough = Plan(replace(problem(), variants={3: (INEXACT, FAST)}), "by hand", variants={3: 0})
    assert str(rough).splitlines()[-1] == "INEXACT: 1 ops sum in another order (1 sums-4)"
    assert inexact_ops(rough) == {3: INEXACT}


def test_an_exact_problem_offers_what_keeps_every_bit() -> None:
    rough = replace(problem(), variants={2: (INEXACT,), 3: (INEXACT, FAST)})
    assert exact_only(rough).variants == {3: (FAST,)}
