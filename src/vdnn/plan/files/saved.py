"""A saved plan, put to work on a model that is here.

Enters: a plan that was read from a file, and the problem of a model as it was captured now. Leaves: the plan with the
same decisions for this problem, checked as if a strategy had just made it; or `ForeignPlan` with what differs and both
values. The one idea: a plan is decisions about a graph, so its graph has to be the same program (`same_graph.py`);
costs, tiers and workspaces are those of here and now, and whether the plan holds under them is `validate.py`'s word.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from vdnn.errors import ForeignPlan, InvalidInput
from vdnn.plan.document.graph_json import Json
from vdnn.plan.document.serialize import data_from_json, data_in
from vdnn.plan.document.versions import made_with, release
from vdnn.plan.files.same_graph import match
from vdnn.plan.judge.validate import violations
from vdnn.plan.model.problem import Problem
from vdnn.plan.plan import Plan

MOST_NAMED = 5  # differences that a person reads; a changed batch changes nearly every value


def from_json(document: Json) -> Plan:
    """The plan that `to_json` wrote; InvalidFile when the document is not one."""
    return Plan.of(data_from_json(document))


def load(path: str | Path) -> Plan:
    """The plan that `save` wrote to `path`."""
    return Plan.of(data_in(path))


def opened(plan: str | Path | Plan) -> Plan:
    """The plan itself, or the one in the file of that name."""
    if isinstance(plan, Plan):
        return plan
    try:
        return load(plan)
    except OSError as error:
        raise InvalidInput(
            f"cannot read a plan from {str(plan)!r}: {error.strerror}. Plans are written by"
            " `plan.save(path)` and `vdnn plan MODEL --save FILE`."
        ) from error


def fitting_plan(saved: Plan, problem: Problem) -> Plan:
    """The saved plan for this problem, or ForeignPlan with everything that stands in its way.

    What may be rounded, and the density of sparse encodings, are the plan's; the budget is the plan's unless the
    problem has one.
    """
    found = match(saved.problem.graph, problem.graph)
    differences = [*_other_torch(saved), *found.differences]
    if differences:
        raise ForeignPlan(_refusal(saved, f"is of another graph than {problem.graph.name}", differences))
    asked = replace(
        problem,
        budget_nbytes=saved.problem.budget_nbytes if problem.budget_nbytes is None else problem.budget_nbytes,
        lossy=saved.problem.lossy,
        density=saved.problem.density,
    )
    unused = [d.storage for d in saved.decisions if d.storage not in found.storages]
    if unused:
        reasons = [f"it decides about storage {storage}, which no op of it uses" for storage in dict.fromkeys(unused)]
        raise ForeignPlan(_refusal(saved, f"does not hold for {problem.graph.name}", reasons))
    decisions = tuple(replace(d, storage=found.storages[d.storage]) for d in saved.decisions)
    plan = Plan(asked, saved.strategy, decisions, offered_again(chosen_forms(saved), asked), saved.note)
    broken = violations(plan)
    if broken:
        raise ForeignPlan(_refusal(saved, f"does not hold for {problem.graph.name} on {problem.hardware.name}", broken))
    return plan


def chosen_forms(plan: Plan) -> dict[int, str]:
    """Op -> the name of the form that the plan computes it in. Names stay where positions change: what is offered is
    sorted by measured times."""
    return {moment: plan.problem.variants[moment][chosen].variant for moment, chosen in plan.variants.items()}


def offered_again(forms: Mapping[int, str], problem: Problem) -> dict[int, int]:
    """The positions of those forms among what the problem offers; ForeignPlan where one is not offered."""
    chosen: dict[int, int] = {}
    for moment, form in forms.items():
        names = [cost.variant for cost in problem.variants.get(moment, ())]
        if form in names:
            chosen[moment] = names.index(form)
        elif form:  # the op as it was traced is always there
            raise ForeignPlan(
                f"the plan computes op {moment} {problem.graph.ops[moment].name!r} as {form!r}, and here it can be"
                f" computed {_listed(names)}. Variants are offered where ops are measured (costs='measured'), those"
                " that change bits with exact=False only. Plan again, or allow what the plan was made with."
            )
    return chosen


def _listed(names: Sequence[str]) -> str:
    others = ", ".join(repr(name) for name in names if name)
    return f"as {others}" if others else "as it was traced only"


def _other_torch(saved: Plan) -> list[str]:
    theirs, ours = saved.made_with.get("torch"), made_with()["torch"]
    if theirs is None or release(theirs) == release(ours):
        return []
    return [f"torch is {theirs} in the plan and {ours} here"]


def _refusal(saved: Plan, what: str, reasons: Sequence[str]) -> str:
    made = f"{saved.problem.graph.name}, {saved.strategy} on {saved.problem.hardware.name}"
    rest = len(reasons) - MOST_NAMED
    lines = [
        f"the saved plan ({made}) {what}:",
        *(f"    {reason}" for reason in reasons[:MOST_NAMED]),
        *([f"    and {rest} more"] if rest > 0 else []),
        "Make one for this model and machine with `vdnn plan MODEL --save FILE`, or leave the saved plan out.",
    ]
    return "\n".join(lines)
