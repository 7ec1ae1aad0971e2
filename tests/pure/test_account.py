"""One budget for a step and what is alive beside it: other steps in flight, and what runs outside of the model."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pure import graphs
from pure.random_plans import plans
from random_examples import examples
from vdnn.errors import Infeasible
from vdnn.plan import Plan, Problem, check
from vdnn.plan.model.budget import Asked, least_share, parse_share, resolve_budget
from vdnn.plan.model.surroundings import ALONE, FEW_NODES, Surroundings, interpreter_nbytes
from vdnn.plan.shared.account import account_nbytes, planned_in_account, stash_nbytes
from vdnn.plan.strategy_table import solve

decide = partial(solve, strategy="greedy")


def deep(budget_nbytes: int | None) -> Problem:
    return graphs.problem(graphs.chain(12), budget_nbytes=budget_nbytes)


def planned_in(around: Surroundings, problem: Problem, decide: Callable[[Problem], Plan]) -> Plan:
    return planned_in_account(replace(problem, surroundings=around), decide)


@given(plan=plans())
@examples(40)
def test_a_stash_is_no_more_than_what_is_there_when_backward_begins(plan: Plan) -> None:
    graph = plan.problem.graph
    last_forward = sum(instruction.moment < graph.num_forward for instruction in plan.program) - 1
    assert 0 <= stash_nbytes(plan) <= plan.timeline.total()[last_forward]


@pytest.mark.parametrize("around", [Surroundings(2), Surroundings(4), Surroundings(1, 150), Surroundings(3, 90)])
def test_everything_together_fits_the_budget_and_the_plan_names_all_of_it(around: Surroundings) -> None:
    kept = decide(deep(None))
    budget_nbytes = account_nbytes(kept, around) * 3 // 4
    plan = check(planned_in(around, deep(budget_nbytes), decide))
    assert account_nbytes(plan, around) <= budget_nbytes
    assert plan.problem.budget_nbytes == budget_nbytes


def test_a_step_that_is_alone_has_the_whole_budget() -> None:
    problem = deep(decide(deep(None)).peak_nbytes)
    assert planned_in(ALONE, problem, decide) == decide(problem)


def test_more_room_makes_no_slower_plan() -> None:
    around = Surroundings(3)
    most = account_nbytes(decide(deep(None)), around)
    seconds = [planned_in(around, deep(most * share // 8), decide).step_time_s for share in (6, 7, 8)]
    assert seconds == sorted(seconds, reverse=True)


@pytest.mark.parametrize("share", [2, 8])
def test_what_cannot_fit_is_refused_with_bytes_that_work(share: int) -> None:
    around = Surroundings(4, 50)
    least = decide(deep(None)).peak_nbytes // share
    with pytest.raises(Infeasible, match="4 steps in flight at once, and 50 B outside of the model") as refused:
        planned_in(around, deep(least), decide)
    minimum_nbytes = refused.value.minimum_nbytes
    times = {2: f"{least_share(minimum_nbytes, least)} of", 8: "11 times"}[share]
    assert f"{minimum_nbytes} bytes), {times} what was asked (keeping" in str(refused.value)
    assert "run fewer steps at once, or" in str(refused.value)
    assert account_nbytes(planned_in(around, deep(minimum_nbytes), decide), around) <= minimum_nbytes


@given(num_in_flight=st.integers(-2, 0))
@examples(5)
def test_surroundings_without_a_step_are_refused(num_in_flight: int) -> None:
    with pytest.raises(ValueError, match="at least one step is in flight"):
        Surroundings(num_in_flight)


OBJECTS = Surroundings(interpreter_nbytes=70)


@pytest.mark.parametrize("around", [OBJECTS, Surroundings(3, 90, 70)])
def test_what_the_interpreter_holds_comes_off_bytes_that_are_named(around: Surroundings) -> None:
    budget_nbytes = account_nbytes(decide(deep(None)), around) * 3 // 4
    plan = check(planned_in(around, deep(budget_nbytes), decide))
    assert plan.peak_nbytes <= budget_nbytes - 70
    assert plan.problem.budget_nbytes == budget_nbytes
    assert plan.decisions == planned_in(around.of_tensors, deep(budget_nbytes - 70), decide).decisions


@pytest.mark.parametrize("strategy", ["greedy", "auto", "offload", "superneurons"])
def test_a_refusal_counts_what_the_interpreter_holds_and_its_minimum_works(strategy: str) -> None:
    solve_with = partial(solve, strategy=strategy)
    with pytest.raises(Infeasible, match="the interpreter's objects of the step") as refused:
        planned_in(OBJECTS, deep(100), solve_with)
    minimum_nbytes = refused.value.minimum_nbytes
    with pytest.raises(Infeasible) as alone:
        solve_with(deep(30))
    assert minimum_nbytes == alone.value.minimum_nbytes + 70
    assert planned_in(OBJECTS, deep(minimum_nbytes), solve_with).peak_nbytes + 70 <= minimum_nbytes


def test_bytes_below_what_the_interpreter_holds_are_refused_as_they_were_asked() -> None:
    with pytest.raises(Infeasible, match=r"^no '.*' plan fits 50 B: op .* needs ") as refused:
        planned_in(OBJECTS, deep(50), decide)
    assert (
        f"({refused.value.minimum_nbytes} bytes), {-(-refused.value.minimum_nbytes // 50)} times what was asked ("
        in str(refused.value)
    )


@pytest.mark.parametrize(
    "around", [OBJECTS, ALONE, Surroundings(expected_nbytes=700), Surroundings(3, 90, 70)], ids=str
)
def test_who_asked_for_a_share_is_told_the_share_that_works(around: Surroundings) -> None:
    kept_nbytes = account_nbytes(decide(deep(None)), around.of_tensors)

    def asked(share: str) -> Problem:
        budget_nbytes = resolve_budget(share, kept_nbytes, around.interpreter_nbytes)
        assert budget_nbytes is not None
        said = Asked(budget_nbytes, parse_share(share))
        return replace(deep(budget_nbytes), kept_nbytes=kept_nbytes, asked=said)

    with pytest.raises(Infeasible, match=r"plan fits 12\.5% \(\d+ B\)") as refused:
        planned_in(around, asked("12.5%"), decide)
    words = re.search(
        r"at least (?P<share>[\d.]+%) of what keeping everything takes: .*\((\d+) bytes\)", str(refused.value)
    )
    assert words is not None
    assert int(words[2]) == refused.value.minimum_nbytes
    assert "what was asked" not in str(refused.value)
    plan = planned_in(around, asked(words["share"]), decide)
    assert account_nbytes(plan, around.as_expected) <= (plan.problem.budget_nbytes or 0)
    less = f"{float(words['share'].rstrip('%')) - 0.1}%"
    budget_nbytes = resolve_budget(less, kept_nbytes, around.interpreter_nbytes) or 0
    assert budget_nbytes < refused.value.minimum_nbytes


LOSS = Surroundings(expected_nbytes=700)


def test_a_refusal_names_bytes_that_hold_a_loss_that_nobody_has_seen() -> None:
    with pytest.raises(Infeasible, match=r"and 700 B for a loss outside of the model") as refused:
        planned_in(LOSS, deep(300), decide)
    minimum_nbytes = refused.value.minimum_nbytes
    plan = check(planned_in(LOSS, deep(minimum_nbytes), decide))
    assert account_nbytes(plan, LOSS.as_expected) == minimum_nbytes
    assert plan.problem.surroundings == LOSS.as_expected


def test_a_loss_that_nobody_has_seen_is_no_reason_to_refuse_and_has_all_that_can_be_left() -> None:
    with pytest.raises(Infeasible) as alone:
        decide(deep(300))
    least = alone.value.minimum_nbytes
    plan = planned_in(LOSS, deep(least + 300), decide)
    outside_nbytes = plan.problem.surroundings.outside_nbytes
    assert 0 < outside_nbytes < 700
    assert account_nbytes(plan, plan.problem.surroundings) == least + 300
    smallest = decide(deep(least))
    assert stash_nbytes(plan) == stash_nbytes(smallest) < stash_nbytes(decide(deep(least + 300)))


def test_a_budget_with_room_for_an_expected_loss_has_the_plan_that_it_had() -> None:
    kept = decide(deep(None))
    enough = account_nbytes(kept, LOSS.as_expected)
    plan = planned_in(LOSS, deep(enough), decide)
    assert plan.decisions == kept.decisions == ()
    assert plan.problem.surroundings == ALONE, "it makes no difference"


def test_a_share_is_one_of_tensors_and_small_steps_have_no_objects_to_speak_of() -> None:
    assert resolve_budget("50%", 1000, 70) == 570
    assert resolve_budget("4096B", 1000, 70) == 4096
    assert interpreter_nbytes(FEW_NODES - 1) == 0
    assert 0 < interpreter_nbytes(FEW_NODES) < interpreter_nbytes(2 * FEW_NODES) < 2 * interpreter_nbytes(FEW_NODES)


def test_every_further_shape_of_a_model_holds_more_and_less_than_the_first() -> None:
    alone = interpreter_nbytes(1000)
    beside_one, beside_two = interpreter_nbytes(1000, 1000), interpreter_nbytes(1000, 2000)
    assert alone < beside_one < beside_two < 2 * alone + 1000 * 25 * 1024
    assert interpreter_nbytes(10, FEW_NODES) == 0, "a few small shapes stay within what a process may always rise by"


def test_a_share_is_never_less_than_another_shape_of_the_model_had() -> None:
    assert resolve_budget("50%", 1000, 70, granted_nbytes=800) == 870
    assert resolve_budget("50%", 1000, 70, granted_nbytes=300) == 570
    assert resolve_budget("4096B", 1000, 70, granted_nbytes=5000) == 4096, "bytes that were named stay what they are"
