"""A step may be computed in several ways: the plan chooses, and bytes, seconds, checks and files follow the choice."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pure import graphs
from vdnn.cost.table import OpCost
from vdnn.plan import Plan, Problem, from_json, simulate, to_json, violations
from vdnn.plan.walk import walk

FAST, SMALL = OpCost(0.25, 70, "fast"), OpCost(2.0, 0, "small")


def problem() -> Problem:
    """chain(3) at a second and ten bytes of workspace per op; its busiest step 3 has two other algorithms."""
    plain = graphs.problem(graphs.chain(3), workspace_nbytes=10)
    return replace(plain, variants={3: (FAST, SMALL)})


def plan(**variants: int) -> Plan:
    return Plan(problem(), "by hand", variants={int(step[1:]): chosen for step, chosen in variants.items()})


def test_a_step_that_is_not_listed_costs_what_the_table_says() -> None:
    assert (plan().peak_nbytes, plan().step_time_s) == (650, 6.0)


def test_the_fast_alternative_takes_its_own_time_and_workspace() -> None:
    assert (plan(s3=0).peak_nbytes, plan(s3=0).step_time_s) == (710, 5.25)


def test_the_small_alternative_moves_the_peak() -> None:
    timeline = simulate(plan(s3=1))
    assert (timeline.peak_nbytes, timeline.duration_s) == (640, 7.0)


@pytest.mark.parametrize("chosen", [0, 1])
def test_the_validator_counts_the_chosen_workspace_too(chosen: int) -> None:
    assert walk(plan(s3=chosen)).peak_nbytes == plan(s3=chosen).peak_nbytes


@pytest.mark.parametrize(("step", "chosen"), [(3, 2), (3, -1), (1, 0), (99, 0)])
def test_an_alternative_that_is_not_offered_is_a_violation(step: int, chosen: int) -> None:
    (complaint,) = violations(Plan(problem(), "by hand", variants={step: chosen}))
    assert f"step {step} takes alternative {chosen}, but the problem offers {2 if step == 3 else 0}" in complaint


@pytest.mark.parametrize("offered", [{3: ()}, {3: (SMALL, FAST)}, {6: (FAST,)}])
def test_alternatives_are_some_of_a_step_that_exists_and_the_fastest_comes_first(
    offered: dict[int, tuple[OpCost, ...]],
) -> None:
    with pytest.raises(ValueError, match=r"variants of step"):
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
    assert lines[-2:] == ["algorithms chosen for 1 steps, workspace up to 70 B", "pass 2"]
