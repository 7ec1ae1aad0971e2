"""The pipeline of the whole project: a captured step is tidied, lowered, priced, planned, cut and run.

Enters: a `TracedStep`, from Dynamo or from ahead-of-time export, and the user's options. Leaves: an `Executor`. Each
line below is one function over frozen values (`traced_step.py`); none changes what it is given. Deciding checks each
plan (`decide.py`), and forms are chosen in `form_choice.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from torch import fx

from vdnn.capture.eager_kernels import cast_shared_weights_once, other_bits, require_dense
from vdnn.capture.inputs import describe_inputs
from vdnn.capture.lower import lower
from vdnn.capture.nodes import forget_origins, tensor_of
from vdnn.capture.stand_ins import forget_fake_results
from vdnn.capture.tangents import tangents_behind, tangents_in
from vdnn.capture.tidy.passes import tidy
from vdnn.codecs.kernels import takes_room
from vdnn.compile.device_room import plan_on_device
from vdnn.compile.disk_room import plan_in_room
from vdnn.compile.estimate import VARIANTS_S, estimate
from vdnn.compile.executable import edition_of, exact_rerun_of
from vdnn.compile.form_choice import TRACED, choose_form, follow_saved_plan
from vdnn.compile.forms import forms
from vdnn.compile.inductor.fuse import fuse
from vdnn.compile.replanning import Replanner
from vdnn.compile.seen_storages import is_worth_a_plan, with_seen
from vdnn.compile.session import Session
from vdnn.compile.traced_step import FormProblem, PlannedStep, Precedent, TracedStep
from vdnn.compile.used_outputs import AnotherEdition, UsedOutputs, may_leave_out
from vdnn.errors import Infeasible
from vdnn.hardware.device import THIS_MACHINE
from vdnn.hardware.where import CPU
from vdnn.ir import Graph
from vdnn.options import Options
from vdnn.plan.files.saved import opened
from vdnn.plan.model.budget import Asked, parse_share, resolve_budget
from vdnn.plan.model.optimizer_state import with_optimizer_state
from vdnn.plan.model.problem import Problem
from vdnn.plan.model.surroundings import Surroundings, expected_outside_nbytes, interpreter_nbytes, rounding_nbytes
from vdnn.plan.planner import Planner
from vdnn.plan.planner import planned as plan_here
from vdnn.plan.planner_process import PlannerProcess
from vdnn.plan.shared.account import account_nbytes, tensors_nbytes
from vdnn.plan.strategy_table import solve, strategy_named
from vdnn.rewrite.boxed import program
from vdnn.rewrite.halves import Half, cut
from vdnn.rewrite.outline import outline_of
from vdnn.runtime.absent_gradients import Tangents, TracedTangent
from vdnn.runtime.edition import Edition
from vdnn.runtime.executor import Executor
from vdnn.runtime.process_memory import give_back_garbage
from vdnn.runtime.step_memory import returned_memory
from vdnn.units import Nbytes, format_nbytes

log = logging.getLogger("vdnn")


def compile_step(step: TracedStep, session: Session) -> tuple[fx.GraphModule, fx.GraphModule, Executor]:
    """Forward and backward as AOTAutograd wants to see them, and what runs them."""
    cast_shared_weights_once(step.joint.graph)
    session.judge_other_bits(step.name, other_bits(step.joint.graph))
    forget_fake_results()
    planned = _planned(step, session)
    num_nodes = len(step.joint.graph.nodes)
    session.num_nodes += num_nodes
    edition, halves = _edition(planned, step, session)
    edition.tangents = tangents_of(step)
    executor = Executor(
        edition,
        memory=session.memory,
        exact_rerun=exact_rerun_of(planned, session),
        judge=session.seen.judge,
        judge_surroundings=session.judge_surroundings,
    )
    executor.before_step = _replanning(executor, planned.form, session, num_nodes)
    if len(edition.tangents.traced) > 1 and may_leave_out(step, session):
        executor.before_step = UsedOutputs(executor, step, partial(_another, executor, session, num_nodes)).before_step
    return halves[0].module, outline_of(halves[1].module), executor


def _planned(step: TracedStep, session: Session) -> PlannedStep:
    """Within what was asked for, beside everything else that the session knows of."""
    session.memory.make_room()  # what another shape left idle is no room for trials
    give_back_garbage(len(step.joint.graph.nodes))
    with returned_memory(step.where), PlannerProcess() as planner:
        plan_within = partial(_plan_beside_shapes, step, session, planner=planner)
        in_room = partial(plan_in_room, plan_within, room=session.disk_room)
        within = in_room if session.part is None else partial(session.part.plan_within, in_room)
        if step.where != CPU:
            within = partial(plan_on_device, within, room=session.device_room)
        planned = within(session.options)
    session.precedent = precedent_of(planned.form) or session.precedent
    session.granted_nbytes = max(session.granted_nbytes, tensors_nbytes(planned.plan.problem))
    return planned


def _edition(planned: PlannedStep, step: TracedStep, session: Session) -> tuple[Edition, tuple[Half, Half]]:
    """The programs of a plan."""
    form, plan = planned.form, planned.plan
    halves = cut(form.joint, form.lowered, plan, step.num_forward_outputs)
    programs = [program(half) for half in halves]
    if session.options.compiler == "inductor":
        programs = fuse(programs, halves, plan)
    return edition_of(plan, halves, programs, session), halves


def _replanning(executor: Executor, form: FormProblem, session: Session, num_nodes: int) -> Callable[[], None] | None:
    if not is_replanned(session.options, form):
        return None
    forget_origins(form.joint.graph)
    return Replanner(executor, replace(form, traced=None), session, num_nodes).before_step


def _another(executor: Executor, session: Session, num_nodes: int, step: TracedStep) -> AnotherEdition:
    """What the executor may run instead, and what then looks after it. A share is never less than it was."""
    step = replace(step, granted_nbytes=session.granted_nbytes)
    planned = _planned(step, session)
    edition, _ = _edition(planned, step, session)
    return edition, lambda: _replanning(executor, planned.form, session, num_nodes)


def tangents_of(step: TracedStep) -> Tangents:
    """What enters its backward, and what of it each gradient hangs on."""
    graph = step.joint.graph
    traced = [tensor for node in tangents_in(graph) if (tensor := tensor_of(node)) is not None]
    return Tangents(
        tuple(TracedTangent(tuple(one.shape), one.stride(), one.dtype, one.device) for one in traced),
        tangents_behind(graph),
    )


def _plan_beside_shapes(step: TracedStep, session: Session, options: Options, planner: Planner) -> PlannedStep:
    """Beside what the interpreter holds for the model's other shapes, or, where nothing fits so, as if alone."""
    try:
        return plan_step(step, options, planner)
    except Infeasible as reason:
        alone = replace(step, num_other_nodes=0)
        has_others = objects_nbytes_of(alone, options) != objects_nbytes_of(step, options)
        if not has_others or session.part is not None or session.may_run_uncaptured:
            raise
        planned = plan_step(alone, options, planner)
        session.warn_of_shapes(step.name, reason)
        return planned


def is_replanned(options: Options, form: FormProblem) -> bool:
    """Where ops were tried only. Who follows a plan follows it, and fused kernels take too long to make in passing."""
    return options.replan and options.plan is None and form.trials is not None and options.compiler == "eager"


def precedent_of(form: FormProblem) -> Precedent | None:
    """What the next shape of this model may go by; None where nothing was tried."""
    forms = {TRACED: form.traced or form, form.problem.form: form}
    trials = {name: found.trials for name, found in forms.items() if found.trials is not None}
    return Precedent(form.problem.form, trials) if trials else None


def plan_step(step: TracedStep, options: Options, planner: Planner = plan_here) -> PlannedStep:
    """The form in which the step is run, and what to do with its storages."""
    traced = describe_step(step, options)
    others = other_forms(step, traced, options)
    if options.plan is None:
        planned = choose_form(traced, others, options, planner, step.precedent)
    else:
        planned = follow_saved_plan(traced, others, options, planner)
    plan, peak = planned.plan, format_nbytes(planned.plan.peak_nbytes)
    log.info("%s: %d ops %s, %s, peak %s", step.name, len(plan.problem.graph), plan.problem.form, plan.strategy, peak)
    return planned


def describe_step(step: TracedStep, options: Options) -> FormProblem:
    """What the graph is, what its ops cost, and what is asked of a plan."""
    require_dense(step.joint.graph)
    joint = tidy(step.joint)
    inputs = describe_inputs(joint.graph, step.plain_inputs)
    lowered = lower(joint, inputs, step.num_forward_outputs, name=step.name, where=step.where)
    lowered = with_seen(lowered, step.seen)
    graph = with_optimizer_state(lowered.graph, options.optimizer)
    around = surroundings_of(step, graph, options)
    like = None if step.precedent is None else step.precedent.trials.get(TRACED)
    is_run_so = step.precedent is None or step.precedent.form == TRACED
    variants_s = VARIANTS_S if is_run_so else 0.0
    found = estimate(lowered, options, around, variants_s=variants_s, like=like, granted_nbytes=step.granted_nbytes)
    problem = Problem(
        graph,
        found.costs,
        options.machine,
        variants=found.variants,
        lossy=options.lossy,
        density=options.density,
        codecs_take_room=step.where != CPU and takes_room(step.where.type),
    )
    kept_nbytes = account_nbytes(solve(problem, "keep-all"), around.of_tensors)
    budget_nbytes = resolve_budget(options.amount, kept_nbytes, around.interpreter_nbytes, step.granted_nbytes)
    asked = replace(problem, budget_nbytes=budget_nbytes, surroundings=around, kept_nbytes=kept_nbytes)
    if budget_nbytes is not None:
        said = Asked(budget_nbytes, parse_share(options.amount))
        asked = replace(asked, surroundings=with_expected(around, graph, budget_nbytes, options), asked=said)
    return FormProblem(joint, lowered, step.num_forward_outputs, asked, trials=found.trials)


def with_expected(around: Surroundings, graph: Graph, budget_nbytes: int, options: Options) -> Surroundings:
    """What a loss outside may take, as long as no step has shown that it takes more than a plan had room for. Who
    follows a plan follows it."""
    nbytes = expected_outside_nbytes(graph)
    is_known = around.outside_nbytes or options.plan is not None
    return around if is_known or not is_worth_a_plan(nbytes, budget_nbytes) else replace(around, expected_nbytes=nbytes)


def surroundings_of(step: TracedStep, graph: Graph, options: Options) -> Surroundings:
    """What is there beside the step: what was seen, what the user says, and what the device's memory has beside the
    bytes of tensors: the interpreter's objects where that is this machine's RAM, else what an allocator rounds up."""
    if step.surroundings.in_arena:  # which is packed in blocks that are rounded up
        beside_nbytes = 0
    else:
        beside_nbytes = objects_nbytes_of(step, options) if step.where == CPU else rounding_nbytes(graph)
    return step.surroundings.joined(Surroundings(options.in_flight, interpreter_nbytes=beside_nbytes))


def objects_nbytes_of(step: TracedStep, options: Options) -> int:
    """What the interpreter holds in this machine's RAM, where the step is to be planned for that."""
    if step.where != CPU or options.machine.name != THIS_MACHINE:
        return 0
    return interpreter_nbytes(len(step.joint.graph.nodes), step.num_other_nodes)


def other_forms(step: TracedStep, traced: FormProblem, options: Options) -> Iterator[FormProblem]:
    """Other forms of the step, priced in outline, each made when it is asked for: all of them for a strategy
    that tries forms, that of a saved plan for who follows one. A budget that is a share is one of the traced step's
    peak."""
    if options.plan is None and (options.budget is None or not strategy_named(options.chosen_strategy).tries_forms):
        return
    known = traced.problem.budget_nbytes
    outline = replace(options, budget=None if known is None else Nbytes(known), costs="roofline")
    wanted = None if options.plan is None else opened(options.plan).problem.form
    for form in forms(step.joint, step.num_forward_outputs, exact=bool(options.exact), plain=step.plain_inputs):
        if wanted in (None, form.name):
            described = describe_step(replace(step, joint=form.make(), precedent=None), outline)
            kept_nbytes, around, asked = traced.problem.kept_nbytes, traced.problem.surroundings, traced.problem.asked
            problem = replace(
                described.problem, form=form.name, kept_nbytes=kept_nbytes, surroundings=around, asked=asked
            )
            yield replace(described, problem=problem, traced=traced)
