"""A question that crosses to another process has the answer that it would have here."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from pure.test_offload import chain_problem
from vdnn.errors import Infeasible
from vdnn.plan import planner_process
from vdnn.plan.planner import Question, planned
from vdnn.plan.planner_process import PlannerProcess, is_planned_apart
from vdnn.plan.shared.account import room_between_steps


@pytest.fixture(autouse=True)
def every_step_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner_process, "LARGE_STEP_OPS", 1)
    monkeypatch.setattr(planner_process, "PROCESS_NBYTES", 0)


@pytest.fixture(scope="module")
def beside() -> Iterator[PlannerProcess]:
    with PlannerProcess() as planner:
        yield planner


def pid_of(planner: PlannerProcess) -> int:
    assert planner._process is not None, "it was started"
    return planner._process.pid


def budgets() -> tuple[int, int]:
    """The least of a chain, and what keeping everything takes."""
    with pytest.raises(Infeasible) as refusal:
        planned(Question(chain_problem(1), "auto"))
    return refusal.value.minimum_nbytes, planned(Question(chain_problem(None), "keep-all")).peak_nbytes


@pytest.mark.parametrize("strategy", ["auto", "offload", "keep-all"])
def test_the_other_process_decides_what_this_one_would(beside: PlannerProcess, strategy: str) -> None:
    least, most = budgets()
    question = Question(chain_problem(most if strategy == "keep-all" else (least + most) // 2), strategy, is_anew=True)
    plan = beside(question)
    assert plan == planned(question)
    assert plan.problem.graph is question.problem.graph, "the graph is not there twice"
    assert plan.timeline.peak_nbytes <= (question.problem.budget_nbytes or 0)
    os.kill(pid_of(beside), 0)  # it was asked, and is there for the next question


def test_what_a_strategy_changes_of_the_problem_comes_back(beside: PlannerProcess) -> None:
    question = Question(replace(chain_problem(None), lossy="fp16"), "gist", is_anew=True)
    assert beside(question).problem == planned(question).problem


def test_a_refusal_crosses_whole(beside: PlannerProcess) -> None:
    least, _ = budgets()
    with pytest.raises(Infeasible, match=str(least)) as refusal:
        beside(Question(chain_problem(1), "auto"))
    assert refusal.value.minimum_nbytes == least


def test_a_process_that_died_is_not_needed() -> None:
    question = Question(chain_problem(None), "keep-all", is_anew=True)
    with PlannerProcess() as planner:
        planner(question)
        os.kill(pid_of(planner), signal.SIGKILL)
        assert planner(question) == planned(question)
        assert planner(question) == planned(question)
        assert planner._process is None, "nobody is asked again"


def test_no_process_is_left_behind() -> None:
    with PlannerProcess() as planner:
        planner(Question(chain_problem(None), "keep-all", is_anew=True))
        pid = pid_of(planner)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize("executable", ["", "/nowhere/python"])
def test_an_interpreter_that_cannot_be_started_is_not_needed(executable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    question = Question(chain_problem(None), "keep-all", is_anew=True)
    with PlannerProcess() as planner:
        assert planner(question) == planned(question)
        assert planner._process is None


def test_small_steps_and_budgets_without_room_for_a_process_plan_here(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = chain_problem(1000)
    room_nbytes = room_between_steps(problem)
    assert room_nbytes is not None
    assert is_planned_apart(problem)
    monkeypatch.setattr(planner_process, "PROCESS_NBYTES", room_nbytes + 1)
    assert not is_planned_apart(problem)
    assert is_planned_apart(replace(problem, budget_nbytes=None)), "nothing bounds it"
    monkeypatch.setattr(planner_process, "LARGE_STEP_OPS", len(problem.graph) + 1)
    assert not is_planned_apart(replace(problem, budget_nbytes=None))


def test_a_small_step_is_planned_apart_as_long_as_the_solver_is_not_loaded_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = chain_problem(1000)
    monkeypatch.setattr(planner_process, "LARGE_STEP_OPS", len(problem.graph) + 1)
    monkeypatch.setattr(planner_process, "SOLVER", "never_loaded")
    assert is_planned_apart(problem)
    monkeypatch.setattr(planner_process, "SOLVER", "sys")
    assert not is_planned_apart(problem)
