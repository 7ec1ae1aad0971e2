"""Which form of a step is looked at, and when the search ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import vdnn.compile.form_choice
from vdnn.compile.form_choice import LONG_STEP_NUM_OPS, MOST_PRICED, MOST_SKETCHED, choose_form
from vdnn.errors import Infeasible
from vdnn.options import Options

BUDGET_NBYTES = 10


def posed(number: int, *, is_priced: bool = False) -> Any:
    """The traced step is number 0; forms count from 1."""
    problem = SimpleNamespace(number=number, costs=SimpleNamespace(ops=()), budget_nbytes=BUDGET_NBYTES, graph=())
    problem.form, problem.is_priced = f"form {number}" if number else "", is_priced
    return SimpleNamespace(number=number, problem=problem, trials=None)


class Solver:
    """Solves the forms that fit, in the times given; in outline, all forms, in those. Writes down what was priced."""

    def __init__(self, fitting: dict[int, float], outlined: dict[int, float] | None = None) -> None:
        self.fitting, self.outlined, self.priced = fitting, outlined or {}, list[int]()
        self.num_sketched = 0

    def __call__(self, problem: Any) -> Any:
        if problem.number and not problem.is_priced:
            self.num_sketched += 1
            return SimpleNamespace(step_time_s=self.outlined.get(problem.number, 5.0))
        self.priced.append(problem.number)
        if problem.number not in self.fitting:
            raise Infeasible("too large", minimum_nbytes=100 - problem.number)
        return SimpleNamespace(step_time_s=self.fitting[problem.number])


def choice(solve: Any, traced: Any, count: int, price: Any) -> Any:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(vdnn.compile.form_choice, "price", lambda form, options: price(form))
        patched.setattr(vdnn.compile.form_choice, "seconds_in_outline", lambda form, options: 1.0)
        others = map(posed, range(1, count + 1))
        found = choose_form(traced, others, Options(exact=False), lambda question: solve(question.problem))
        return found.form.number  # type: ignore[attr-defined]


def chosen(solve: Solver, count: int) -> Any:
    return choice(solve, posed(0), count, lambda form: posed(form.number, is_priced=True))


@pytest.fixture(autouse=True)
def everything_may_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vdnn.compile.form_choice, "largest_op_nbytes", lambda problem: 0)


def test_forms_that_do_not_fit_do_not_end_the_search() -> None:
    assert chosen(Solver({MOST_SKETCHED + 2: 1.0}), MOST_SKETCHED + 3) == MOST_SKETCHED + 2


def test_once_one_fits_only_the_best_in_outline_are_priced() -> None:
    solve = Solver(dict.fromkeys(range(20), 2.0), {3: 1.5, 5: 1.2})
    assert chosen(solve, 20) == 0
    assert solve.priced == [0, 5, 3][: 1 + MOST_PRICED]


def test_of_those_that_fit_the_fastest_is_taken() -> None:
    assert chosen(Solver({1: 3.0, 2: 1.0}), 4) == 2


def test_a_form_that_costs_nothing_in_outline_ends_the_comparison() -> None:
    solve = Solver(dict.fromkeys(range(1, 20), 2.0), {2: 1.0, 3: 0.5})
    chosen(solve, 20)
    assert solve.priced[1] == 2


def test_one_form_alone_is_priced_at_once_and_two_are_compared_in_outline() -> None:
    alone, compared = Solver({1: 1.0}), Solver({1: 1.0})
    assert (chosen(alone, 1), chosen(compared, 2)) == (1, 1)
    assert (alone.num_sketched, compared.num_sketched) == (0, 2)


def test_where_none_fits_the_least_need_is_named() -> None:
    with pytest.raises(Infeasible) as caught:
        chosen(Solver({}), 3)
    assert caught.value.minimum_nbytes == 97


def test_of_forms_that_cannot_fit_the_smallest_is_priced_for_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vdnn.compile.form_choice, "largest_op_nbytes", lambda problem: 50 - problem.number)
    solve = Solver({})
    with pytest.raises(Infeasible, match="That is with the form 3") as caught:
        chosen(solve, 3)
    assert caught.value.minimum_nbytes == 97
    assert solve.priced == [0, 3]


def test_a_long_step_that_fits_is_taken_as_it_was_traced() -> None:
    solve = Solver({0: 9.0, 1: 1.0})
    long = posed(0)
    long.problem.graph = range(LONG_STEP_NUM_OPS + 1)
    assert choice(solve, long, 2, lambda form: form) == 0
    assert solve.priced == [0]


def test_a_plan_in_outline_stays_where_nothing_is_priced() -> None:
    calls: list[int] = []

    def solve(problem: Any) -> Any:
        calls.append(problem.number)
        return SimpleNamespace(step_time_s=5.0 if problem.number == 0 else 2.0)

    assert choice(solve, posed(0), 1, lambda form: form) == 1
    assert calls == [0, 1]
