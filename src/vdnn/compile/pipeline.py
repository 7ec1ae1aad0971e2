"""Where both front ends meet: a joint graph becomes a planned, running pair of forward and backward.

Enters: a joint graph from Dynamo or from ahead-of-time export, and the user's options. Leaves: an `Executor`.
`compile_joint` is the pipeline of the whole project on one screen; every line of it is one function over frozen values
or one graph.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import fx

from vdnn.capture.eager_kernels import require_dense, require_exact
from vdnn.capture.inputs import describe_inputs
from vdnn.capture.lower import InputInfo, Lowered, lower
from vdnn.capture.tidy.passes import tidy
from vdnn.compile.form_choice import Posed, choose_form
from vdnn.compile.forms import Form, forms
from vdnn.compile.inductor.fuse import fuse
from vdnn.compile.session import Session
from vdnn.cost.cost_cache import CostCache
from vdnn.cost.measured import measure, measure_variants
from vdnn.cost.op_calls import may_be_tried, op_calls
from vdnn.cost.roofline import roofline
from vdnn.cost.table import CostTable, OpCost
from vdnn.errors import ForeignPlan, Infeasible
from vdnn.ir import Graph
from vdnn.options import Options
from vdnn.plan.exact_counterpart import exact_counterpart
from vdnn.plan.files.plan_cache import PlanCache
from vdnn.plan.files.saved import fitting_plan, opened
from vdnn.plan.judge.validate import check
from vdnn.plan.model.budget import resolve_budget
from vdnn.plan.model.optimizer_state import with_optimizer_state
from vdnn.plan.model.problem import Problem
from vdnn.plan.plan import Plan
from vdnn.plan.shared.workspaces import inexact_ops
from vdnn.plan.strategy_table import solve, solve_with_workspaces, strategy_named
from vdnn.rewrite.boxed import boxed, program
from vdnn.rewrite.halves import Half, cut
from vdnn.runtime.encodings import codecs_of
from vdnn.runtime.executor import BoxedCall, Executor, Program
from vdnn.runtime.gradient_error import ExactRerun
from vdnn.runtime.journeys import trips_of
from vdnn.torch_private import TracingContext, without_modes
from vdnn.units import format_nbytes

log = logging.getLogger("vdnn")


Variants = Mapping[int, tuple[OpCost, ...]]


def estimate(lowered: Lowered, options: Options) -> tuple[CostTable, Variants]:
    """What each op costs, as the options want it known, and where a budget is to be kept, what it costs computed in
    other ways."""
    if options.chosen_costs == "roofline":
        return roofline(lowered.graph, options.hardware), {}
    calls, cache = op_calls(lowered), CostCache()
    with without_modes():  # real ops on real tensors, in the middle of a trace
        costs = _with_untried(measure(calls, cache, progress=options.progress), lowered.graph, options)
        if options.budget is None:
            return costs, {}
        return costs, measure_variants(calls, costs, cache, exact=options.exact, progress=options.progress)


def _with_untried(costs: CostTable, graph: Graph, options: Options) -> CostTable:
    """What may not be run for the sake of measuring costs what the roofline says."""
    if all(map(may_be_tried, graph.ops)):
        return costs
    outline = roofline(graph, options.hardware)
    return CostTable(tuple(costs[k] if may_be_tried(op) else outline[k] for k, op in enumerate(graph.ops)))


def describe_joint(
    joint: fx.GraphModule, num_forward_outputs: int, plain: Sequence[InputInfo], options: Options, name: str
) -> Posed:
    """Where capture ends: what the graph is, what its ops cost, and what is asked of a plan."""
    require_dense(joint.graph)
    joint = tidy(joint)
    lowered = lower(joint, describe_inputs(joint.graph, plain), num_forward_outputs, name=name)
    graph = with_optimizer_state(lowered.graph, options.optimizer)
    costs, variants = estimate(lowered, options)
    problem = Problem(graph, costs, options.hardware, variants=variants, lossy=options.lossy, density=options.density)
    budget_nbytes = resolve_budget(options.budget, solve(problem, "keep-all").peak_nbytes)
    return Posed(joint, lowered, replace(problem, budget_nbytes=budget_nbytes))


def decide(problem: Problem, options: Options) -> Plan:
    """What to do with the storages: as a saved plan says, as was decided before, or as the chosen strategy does;
    checked in any case."""
    if options.plan is not None:
        return fitting_plan(opened(options.plan), problem)
    known = PlanCache()
    plan = known.lookup(problem, options.chosen_strategy)
    if plan is None:
        plan = check(solve_with_workspaces(problem, options.chosen_strategy))
        known.store(plan, problem, options.chosen_strategy)
    return plan


def plan_joint(
    joint: fx.GraphModule,
    num_forward_outputs: int,
    plain: Sequence[InputInfo],
    options: Options,
    name: str,
    *,
    decide: Callable[[Problem, Options], Plan] = decide,
) -> tuple[Posed, Plan]:
    """The planner behind capture: the form in which the step is run, and what to do with its storages."""
    offered = _offered(joint, num_forward_outputs, plain, options)
    traced = describe_joint(joint, num_forward_outputs, plain, options, name)
    in_bytes = replace(options, budget=traced.problem.budget_nbytes)  # a share is one of the traced step's peak
    outline = replace(in_bytes, costs="roofline")

    def pose(form: Form) -> Posed:
        posed = describe_joint(form.make(), num_forward_outputs, plain, outline, name)
        return replace(posed, problem=replace(posed.problem, form=form.name), traced=traced)

    def price(posed: Posed) -> Posed:
        if options.chosen_costs == "roofline":
            return posed
        costs, variants = estimate(posed.lowered, in_bytes)
        return replace(posed, problem=replace(posed.problem, costs=costs, variants=variants))

    if options.plan is None:
        try:
            outlined_s = sum(cost.seconds for cost in roofline(traced.lowered.graph, options.hardware).ops)
            posed, plan = choose_form(traced, offered, pose, price, lambda p: decide(p, options), outlined_s)
        except Infeasible as reason:
            raise _with_chunks(reason, options) from None
    else:
        wanted = opened(options.plan).problem.form
        posed = price(pose(_named(wanted, offered))) if wanted else traced
        plan = decide(posed.problem, options)
    peak = format_nbytes(plan.peak_nbytes)
    log.info("%s: %d ops %s, %s, peak %s", name, len(plan.problem.graph), plan.problem.form, plan.strategy, peak)
    return posed, plan


def _offered(
    joint: fx.GraphModule, num_forward_outputs: int, plain: Sequence[InputInfo], options: Options
) -> Iterator[Form]:
    """Other forms of the step, where somebody may want one: who follows a saved plan, and strategies that try forms."""
    if options.plan is not None:
        return forms(joint, num_forward_outputs, exact=options.exact, plain=plain)
    if options.budget is None or not strategy_named(options.chosen_strategy).tries_forms:
        return iter(())
    return forms(joint, num_forward_outputs, exact=options.exact, plain=plain)


def _with_chunks(reason: Infeasible, options: Options) -> Infeasible:
    """The same, with what giving up the last bits would allow, where that was not tried."""
    if not options.exact or not strategy_named(options.chosen_strategy).tries_forms:
        return reason
    words = "exact=False (--inexact) may need less: large ops, or the whole step, then run in chunks of the batch."
    return Infeasible(f"{reason}\n{words}", minimum_nbytes=reason.minimum_nbytes)


def _named(wanted: str, offered: Iterator[Form]) -> Form:
    found = next((form for form in offered if form.name == wanted), None)
    if found is None:
        raise ForeignPlan(
            f"the plan is for the step in another form ({wanted}), which is not offered here: forms in chunks change"
            " the last bits, so they need exact=False, and not every model has them. Pass exact=False, or plan again."
        )
    return found


def compile_joint(
    joint: fx.GraphModule, num_forward_outputs: int, plain: Sequence[InputInfo], session: Session
) -> tuple[fx.GraphModule, fx.GraphModule, Executor]:
    require_exact(joint.graph)
    posed, plan = plan_joint(joint, num_forward_outputs, plain, session.options, session.next_name())
    if trips_of(plan):
        session.transfers()  # opened now, so that a tier that cannot be had is known before the first step
    halves = cut(posed.joint, posed.lowered, plan, num_forward_outputs)
    exact_rerun = None if _is_exact(plan) else _exact_rerun(posed.traced or posed, num_forward_outputs, session)
    programs = [program(half) for half in halves]
    if session.options.compiler == "inductor":
        programs = fuse(programs, halves, plan)
    executor = _executor(plan, halves, programs, session, exact_rerun=exact_rerun)
    session.add(executor)
    return halves[0].module, halves[1].module, executor


def _executor(
    plan: Plan, halves: tuple[Half, Half], programs: Sequence[Program], session: Session, **options: Any
) -> Executor:
    _, backward = halves
    return Executor(
        plan,
        *programs,
        handle_position=backward.handle_position,
        num_saved=backward.num_saved,
        overwrites=backward.overwrites,
        transfers=session.transfers,
        **options,
    )


def _is_exact(plan: Plan) -> bool:
    rounds = any(not codec.is_exact for codec in codecs_of(plan).values())
    return plan.problem.is_exact and not rounds and not inexact_ops(plan)


def _exact_rerun(traced: Posed, num_forward_outputs: int, session: Session) -> ExactRerun:
    """What will repeat the first step exactly. Cut now, while the joint graph is at hand, and built when wanted."""
    joint, lowered, graph = traced.joint, traced.lowered, traced.problem.graph
    try:
        exact_plan = exact_counterpart(traced.problem)
    except Infeasible as reason:
        words = f"the exact step does not fit beside its gradients: it needs {format_nbytes(reason.minimum_nbytes)}"
        return ExactRerun(graph, (), lambda: words)
    halves = cut(joint, lowered, exact_plan, num_forward_outputs)
    outputs: Any = joint.graph.output_node().args[0]
    names = [_gradient_name(lowered, node) for node in outputs[num_forward_outputs:]]
    return ExactRerun(
        graph, names, lambda: _executor(exact_plan, halves, [program(half) for half in halves], session, watched=False)
    )


def _gradient_name(lowered: Lowered, node: Any) -> str:
    value = lowered.value_of_node.get(node)
    return "" if value is None else lowered.graph.storages[lowered.graph.values[value].storage].name


@dataclass
class JointCompiler:
    """The four callbacks that AOTAutograd wants for one graph. Both front ends pass exactly these."""

    session: Session
    plain: Sequence[InputInfo]
    executor: Executor | None = field(default=None, init=False)

    def partition(
        self, joint: fx.GraphModule, _: Any, *, num_fwd_outputs: int, **__: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        forward, backward, self.executor = compile_joint(joint, num_fwd_outputs, self.plain, self.session)
        return forward, backward

    def forward(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> BoxedCall:
        # Ahead of time, a step in which nothing requires a gradient comes here too, and was never partitioned.
        _donate_nothing()
        return self.inference(gm, example_inputs) if self.executor is None else self.executor.forward

    def backward(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> BoxedCall:
        assert self.executor is not None, (
            "AOTAutograd compiles a backward only after it has partitioned the joint graph"
        )
        return self.executor.backward

    def inference(self, module: fx.GraphModule, _: Sequence[Any]) -> BoxedCall:
        """A graph without backward stashes nothing: it runs as it is, letting go of every tensor at its last use."""
        return BoxedCall(boxed(tidy(module)))


def _donate_nothing() -> None:
    """What backward does to what was saved for it is between `runtime/overwritten.py` and a retained graph. AOTAutograd
    refuses retain_graph=True where it thinks that tensors are donated."""
    context = TracingContext.try_get()
    if context is not None and context.fw_metadata is not None:
        context.fw_metadata.bw_donated_idxs = []
