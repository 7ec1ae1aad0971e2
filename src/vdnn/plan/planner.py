"""One question to the planner, and its answer.

Enters: a `Question`: a problem, the name of a strategy, whether what was decided before may be used. Leaves: a plan
that was checked. A question is a frozen value that can be handed to another process (`planner_process.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from vdnn.plan.files.plan_cache import PlanCache
from vdnn.plan.judge.validate import check
from vdnn.plan.model.problem import Problem
from vdnn.plan.plan import Plan
from vdnn.plan.shared.account import planned_in_account
from vdnn.plan.strategy_table import solve_with_workspaces


@dataclass(frozen=True)
class Question:
    problem: Problem
    strategy: str
    is_anew: bool = False
    """Whether it is decided whatever was decided before: prices may have changed since."""


Planner = Callable[[Question], Plan]


def planned(question: Question) -> Plan:
    """What the strategy decides within the whole account, or decided before; `Infeasible` where nothing fits."""
    return planned_in_account(question.problem, partial(_decided, question=question))


def _decided(problem: Problem, question: Question) -> Plan:
    cache = PlanCache()
    plan = None if question.is_anew else cache.lookup(problem, question.strategy)
    if plan is None:
        plan = check(solve_with_workspaces(problem, question.strategy))
        cache.store(plan, problem, question.strategy)
    return plan
