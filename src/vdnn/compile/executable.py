"""Two halves of a planned step as an `Executor`, and the exact rerun of a step that is not exact.

Enters: a plan and the halves that were cut for it. Leaves: what runs. The first step of a plan that rounds, or sums in
another order, is run a second time exactly, so that the report can say how far its gradients are off
(`runtime/gradient_error.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from vdnn.capture.lower import Lowered
from vdnn.compile.session import Session
from vdnn.compile.traced_step import FormProblem, PlannedStep
from vdnn.errors import Infeasible
from vdnn.plan.exact_counterpart import exact_counterpart
from vdnn.plan.plan import Plan
from vdnn.plan.shared.workspaces import inexact_ops
from vdnn.rewrite.boxed import program
from vdnn.rewrite.halves import Half, cut
from vdnn.runtime.edition import Edition, Program
from vdnn.runtime.encodings import codecs_of
from vdnn.runtime.executor import Executor
from vdnn.runtime.gradient_error import ExactRerun
from vdnn.units import format_nbytes


def edition_for(form: FormProblem, plan: Plan, session: Session) -> Edition:
    """The step in this form as the plan says."""
    halves = cut(form.joint, form.lowered, plan, form.num_forward_outputs)
    return edition_of(plan, halves, [program(half) for half in halves], session)


def edition_of(plan: Plan, halves: tuple[Half, Half], programs: Sequence[Program], session: Session) -> Edition:
    _, backward = halves
    first, later = programs
    return Edition(
        plan,
        first,
        later,
        num_saved=backward.num_saved,
        overwrites=backward.overwrites,
        num_unchecked=backward.num_unchecked,
        transfers=session.transfers,
        where=session.where,
    )


def exact_rerun_of(planned: PlannedStep, session: Session) -> ExactRerun | None:
    """What will repeat the first step exactly; None where the plan keeps every bit."""
    return None if _is_exact(planned.plan) else _rerun(planned.form.traced or planned.form, session)


def _is_exact(plan: Plan) -> bool:
    rounds = any(not codec.is_exact for codec in codecs_of(plan).values())
    return plan.problem.is_exact and not rounds and not inexact_ops(plan)


def _rerun(traced: FormProblem, session: Session) -> ExactRerun:
    """Cut now, while the joint graph is at hand, and built when wanted."""
    joint, lowered, graph = traced.joint, traced.lowered, traced.problem.graph
    try:
        plan = exact_counterpart(traced.problem)
    except Infeasible as reason:
        words = f"the exact step does not fit beside its gradients: it needs {format_nbytes(reason.minimum_nbytes)}"
        return ExactRerun(graph, (), partial(str, words))
    halves = cut(joint, lowered, plan, traced.num_forward_outputs)
    outputs: Any = joint.graph.output_node().args[0]
    names = [_gradient_name(lowered, node) for node in outputs[traced.num_forward_outputs :]]
    return ExactRerun(graph, names, partial(_unwatched, plan, halves, session))


def _unwatched(plan: Plan, halves: tuple[Half, Half], session: Session) -> Executor:
    edition = edition_of(plan, halves, [program(half) for half in halves], session)
    return Executor(edition, memory=session.memory, watched=False)


def _gradient_name(lowered: Lowered, node: Any) -> str:
    value = lowered.value_of_node.get(node)
    return "" if value is None else lowered.graph.storages[lowered.graph.values[value].storage].name
