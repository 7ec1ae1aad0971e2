"""Where both front ends meet: a joint graph becomes a planned, running pair of forward and backward.

Enters: a joint graph from Dynamo or from ahead-of-time export, and the user's options. Leaves: an `Executor`.
`compile_joint` is the pipeline of the whole project on one screen; every line of it is one function over frozen values
or one graph.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import fx
from torch._guards import TracingContext
from torch.utils._python_dispatch import _disable_current_modes

from vdnn.capture.eager_kernels import require_dense, require_exact
from vdnn.capture.inputs import describe_inputs
from vdnn.capture.lower import InputInfo, Lowered, lower
from vdnn.capture.tidy import tidy
from vdnn.cost.cache import CostCache
from vdnn.cost.measured import measure
from vdnn.cost.roofline import roofline
from vdnn.cost.table import CostTable
from vdnn.errors import InvalidInput
from vdnn.hardware.detect import this_machine
from vdnn.hardware.device import Hardware
from vdnn.hardware.presets import preset
from vdnn.op_calls import op_calls
from vdnn.optimizers import with_optimizer_state
from vdnn.plan.plan import Plan
from vdnn.plan.problem import Problem
from vdnn.plan.strategies import solve
from vdnn.plan.validate import check
from vdnn.rewrite.boxed import boxed, program
from vdnn.rewrite.halves import cut
from vdnn.runtime.executor import BoxedCall, Executor
from vdnn.units import format_nbytes, parse_nbytes

log = logging.getLogger("vdnn")


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """What a user may ask of a virtualized model."""

    budget: int | str | None = None
    """Bytes that the peak of a training step stays within: 12884901888 or "12GiB". None: no bound."""

    strategy: str = "keep-all"
    """The name of a planning strategy."""

    device: str | Hardware | None = None
    """The machine to plan for: a preset's name or a description. None: this machine."""

    optimizer: str | None = None
    """Whose state is counted into the memory of the step: "adam", "momentum", ... None: nobody's."""

    costs: str = "roofline"
    """How the time and workspace of ops are known: "roofline" (from the machine's speeds, no workspace) or "measured"
    (each distinct op is run once on this machine, and remembered)."""

    progress: Callable[[int, int], None] | None = None
    """Called with (done, total) while ops are measured."""

    def __post_init__(self) -> None:
        if self.budget is not None:
            parse_nbytes(self.budget)
        if self.costs not in ("roofline", "measured"):
            raise InvalidInput(f"costs are 'roofline' or 'measured', not {self.costs!r}")
        if self.costs == "measured" and self.device is not None and self.device != this_machine():
            raise InvalidInput(
                f"ops can be measured on this machine only, not on {self.device!r}: leave out costs='measured' or"
                " device="
            )

    @property
    def budget_nbytes(self) -> int | None:
        return None if self.budget is None else parse_nbytes(self.budget)

    @property
    def hardware(self) -> Hardware:
        if isinstance(self.device, Hardware):
            return self.device
        with _disable_current_modes():  # measuring this machine needs real tensors
            return this_machine() if self.device is None else preset(self.device)

    def on_known_hardware(self) -> Options:
        """With the machine looked up. To be called before tracing starts: while AOTAutograd traces, every tensor is
        fake."""
        return replace(self, device=self.hardware)

    @classmethod
    def parse(cls, options: dict[str, Any]) -> Options:
        """From a dictionary, as `torch.compile(..., options=...)` hands it over."""
        known = set(cls.__dataclass_fields__)
        unknown = sorted(set(options) - known)
        if unknown:
            raise InvalidInput(f"unknown option(s) for vdnn: {', '.join(unknown)}. Known: {', '.join(sorted(known))}")
        return cls(**options)


def estimate(lowered: Lowered, options: Options) -> CostTable:
    """What each step costs, as the options want it known."""
    if options.costs == "roofline":
        return roofline(lowered.graph, options.hardware)
    with _disable_current_modes():  # real ops on real tensors, in the middle of a trace
        return measure(op_calls(lowered), CostCache(), progress=options.progress)


def plan_joint(
    joint: fx.GraphModule, num_forward_outputs: int, plain: Sequence[InputInfo], options: Options, name: str
) -> tuple[Lowered, Plan]:
    """Capture's last steps and the planner: what the graph is, and what to do with its storages."""
    require_dense(joint.graph)
    tidy(joint)
    lowered = lower(joint, describe_inputs(joint.graph, plain), num_forward_outputs, name=name)
    graph, hardware = with_optimizer_state(lowered.graph, options.optimizer), options.hardware
    problem = Problem(graph, estimate(lowered, options), hardware, options.budget_nbytes)
    plan = check(solve(problem, options.strategy))
    log.info("%s: %d steps, %s, peak %s", name, len(lowered.graph), plan.strategy, format_nbytes(plan.peak_nbytes))
    return lowered, plan


def compile_joint(
    joint: fx.GraphModule, num_forward_outputs: int, plain: Sequence[InputInfo], options: Options, name: str
) -> tuple[fx.GraphModule, fx.GraphModule, Executor]:
    require_exact(joint.graph)
    lowered, plan = plan_joint(joint, num_forward_outputs, plain, options, name)
    forward, backward = cut(joint, lowered, plan, num_forward_outputs)
    executor = Executor(
        plan,
        program(forward),
        program(backward),
        handle_position=backward.handle_position,
        num_saved=backward.num_saved,
    )
    return forward.module, backward.module, executor


@dataclass
class JointCompiler:
    """The four callbacks that AOTAutograd wants for one graph. Both front ends pass exactly these."""

    options: Options
    plain: Sequence[InputInfo]
    name: str
    on_executor: Callable[[Executor], None]
    executor: Executor | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.options = self.options.on_known_hardware()

    def partition(
        self, joint: fx.GraphModule, _: Any, *, num_fwd_outputs: int, **__: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        forward, backward, self.executor = compile_joint(joint, num_fwd_outputs, self.plain, self.options, self.name)
        self.on_executor(self.executor)
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
        tidy(module)
        return BoxedCall(boxed(module))


def _donate_nothing() -> None:
    """Backward leaves intact what was saved for it. AOTAutograd assumes otherwise and refuses retain_graph=True."""
    context = TracingContext.try_get()
    if context is not None and context.fw_metadata is not None:
        context.fw_metadata.bw_donated_idxs = []
