"""Which form of a step is looked at, and when the search ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import vdnn.form_choice
from vdnn.errors import Infeasible
from vdnn.form_choice import MOST_TRIED, choose_form

BUDGET_NBYTES = 10


def posed(number: int) -> Any:
    """The traced step is number 0; forms count from 1."""
    return SimpleNamespace(
        number=number,
        problem=SimpleNamespace(
            number=number, costs=SimpleNamespace(ops=()), budget_nbytes=BUDGET_NBYTES, form=f"form {number}"
        ),
    )


class Solver:
    """Solves the forms that fit; writes down which it was asked."""

    def __init__(self, fitting: dict[int, float]) -> None:
        self.fitting, self.asked = fitting, list[int]()

    def __call__(self, problem: Any) -> Any:
        self.asked.append(problem.number)
        if problem.number not in self.fitting:
            raise Infeasible("too large", minimum_nbytes=100 - problem.number)
        return SimpleNamespace(step_time_s=self.fitting[problem.number])


def chosen(solve: Solver, count: int) -> Any:
    return choose_form(posed(0), range(1, count + 1), posed, lambda form: form, solve)[0].number  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def everything_may_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vdnn.form_choice, "largest_step_nbytes", lambda problem: 0)


def test_forms_that_do_not_fit_do_not_end_the_search() -> None:
    assert chosen(Solver({MOST_TRIED + 2: 1.0}), MOST_TRIED + 3) == MOST_TRIED + 2


def test_once_one_fits_only_a_few_are_looked_at() -> None:
    solve = Solver(dict.fromkeys(range(20), 1.0))
    assert chosen(solve, 20) == 0
    assert len(solve.asked) == 1 + MOST_TRIED


def test_of_those_that_fit_the_fastest_is_taken() -> None:
    assert chosen(Solver({1: 3.0, 2: 1.0, 3: 2.0}), 4) == 2


def test_where_none_fits_the_least_need_is_named() -> None:
    with pytest.raises(Infeasible) as caught:
        chosen(Solver({}), 3)
    assert caught.value.minimum_nbytes == 97


def test_a_form_that_cannot_fit_is_not_priced_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vdnn.form_choice, "largest_step_nbytes", lambda problem: 50 - problem.number)
    solve = Solver({})
    with pytest.raises(Infeasible, match=r"With form 3, 47 B \(47 bytes\) and workspaces may do"):
        chosen(solve, 3)
    assert solve.asked == [0]
