"""Errors that carry more than words keep it on the way from one process to another."""

from __future__ import annotations

import pickle

from vdnn.errors import Infeasible, InvalidPlan


def test_the_smallest_budget_of_an_infeasible_problem_reaches_another_process() -> None:
    sent = Infeasible("no plan fits 1 GiB", minimum_nbytes=7)
    received = pickle.loads(pickle.dumps(sent))
    assert (str(received), received.minimum_nbytes) == ("no plan fits 1 GiB", 7)


def test_the_violations_of_an_invalid_plan_reach_another_process() -> None:
    received = pickle.loads(pickle.dumps(InvalidPlan(["one is broken", "two is broken"])))
    assert received.violations == ("one is broken", "two is broken")
