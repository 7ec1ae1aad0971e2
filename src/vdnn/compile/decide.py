"""What to do with the storages of a step.

Enters: a problem and the user's options. Leaves: a plan that was checked: a saved one, one that was decided before for
the same problem, or a new one.
"""

from __future__ import annotations

from functools import partial

from vdnn.options import Options
from vdnn.plan.files.plan_cache import PlanCache
from vdnn.plan.files.saved import fitting_plan, opened
from vdnn.plan.judge.validate import check
from vdnn.plan.model.problem import Problem
from vdnn.plan.plan import Plan
from vdnn.plan.shared.account import planned_in_account
from vdnn.plan.strategy_table import solve_with_workspaces


def decide(problem: Problem, options: Options) -> Plan:
    """What to do with the storages: as a saved plan says, as was decided before, or as the chosen strategy does;
    checked in any case."""
    if options.plan is not None:
        return fitting_plan(opened(options.plan), problem)
    return planned_in_account(problem, partial(_known_or_new, options=options))


def decide_anew(problem: Problem, options: Options) -> Plan:
    """As the chosen strategy does, whatever was decided before: prices may have changed since."""
    return planned_in_account(problem, partial(_new, options=options))


def _known_or_new(problem: Problem, options: Options) -> Plan:
    plan = PlanCache().lookup(problem, options.chosen_strategy)
    return _new(problem, options) if plan is None else plan


def _new(problem: Problem, options: Options) -> Plan:
    plan = check(solve_with_workspaces(problem, options.chosen_strategy))
    PlanCache().store(plan, problem, options.chosen_strategy)
    return plan
