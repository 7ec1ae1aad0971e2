"""The planner: a problem becomes a plan, and the plan is priced, checked, written down and read back.

Nothing here imports torch. Read in this order: `model/problem.py` (what is asked), `model/actions.py` (what can be
done), `plan.py` (the answer), `judge/schedule.py` (the program it stands for), `judge/simulate.py` (what that holds and
takes), `judge/validate.py` (whether it may), `strategies/` (who decides).
"""

from vdnn.plan.document.serialize import save, to_json
from vdnn.plan.files.saved import from_json, load
from vdnn.plan.judge.schedule import Instruction, Kind, schedule
from vdnn.plan.judge.simulate import simulate
from vdnn.plan.judge.validate import check, violations
from vdnn.plan.model.actions import ACTIONS, Action, Decision, Drop, Encode, EncodeOffload, Keep, Offload, Recompute
from vdnn.plan.model.problem import Problem
from vdnn.plan.model.timeline import Lane, Timeline
from vdnn.plan.plan import Plan
from vdnn.plan.shared.infeasible import infeasible
from vdnn.plan.strategy_table import STRATEGIES, solve
from vdnn.plan.views.listing import listing

__all__ = [
    "ACTIONS",
    "STRATEGIES",
    "Action",
    "Decision",
    "Drop",
    "Encode",
    "EncodeOffload",
    "Instruction",
    "Keep",
    "Kind",
    "Lane",
    "Offload",
    "Plan",
    "Problem",
    "Recompute",
    "Timeline",
    "check",
    "from_json",
    "infeasible",
    "listing",
    "load",
    "save",
    "schedule",
    "simulate",
    "solve",
    "to_json",
    "violations",
]
