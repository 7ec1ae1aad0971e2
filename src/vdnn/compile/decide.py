"""What to do with the storages of a step.

Enters: a problem, the user's options, and who plans. Leaves: a plan that was checked: a saved one, one that was decided
before for the same problem, or a new one.
"""

from __future__ import annotations

from vdnn.options import Options
from vdnn.plan.files.saved import fitting_plan, opened
from vdnn.plan.model.problem import Problem
from vdnn.plan.plan import Plan
from vdnn.plan.planner import Planner, Question


def decide(problem: Problem, options: Options, planner: Planner) -> Plan:
    """What to do with the storages: as a saved plan says, as was decided before, or as the chosen strategy does;
    checked in any case."""
    if options.plan is not None:
        return fitting_plan(opened(options.plan), problem)
    return planner(Question(problem, options.chosen_strategy))
