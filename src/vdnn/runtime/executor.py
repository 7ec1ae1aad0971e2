"""Run one captured graph: its forward, and for each forward its backward.

Enters: the two programs and their plan. Leaves: two callables in AOTAutograd's boxed convention, and what they
measured: the time of every ordinary step and the timeline of a watched one. The first step is watched; later ones run
at full speed.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from vdnn.errors import LostHandle, Unsupported
from vdnn.plan.judge.schedule import schedule
from vdnn.plan.model.findings import GradientError
from vdnn.plan.model.timeline import Timeline
from vdnn.plan.plan import Plan
from vdnn.runtime.encodings import Encodings, Overflow
from vdnn.runtime.gradient_error import ExactRerun, RememberedForward
from vdnn.runtime.journeys import Journeys, trips_of
from vdnn.runtime.overwritten import make_own
from vdnn.runtime.process_memory import give_back_garbage
from vdnn.runtime.running_step import Step, running
from vdnn.runtime.runtime import shared_runtime
from vdnn.runtime.step_memory import StepMemory, UnplannedMemory
from vdnn.runtime.transfers.interface import Transfers
from vdnn.runtime.watched_step import WatchedStep
from vdnn.torch_private import are_saved_tensors_hooked, is_backward_differentiated, mark_boxed

Boxed = Callable[[list[Any]], Sequence[Any]]

_NUMBERS = itertools.count()

KEPT_TIMES = 1000
"""How many step times are remembered: enough for a steady median, bounded for runs of a million steps."""


class OrdinaryStep:
    """A step nobody watches."""

    def __init__(self, journeys: Journeys, encodings: Encodings, *, is_lost: bool = False) -> None:
        self.journeys, self.encodings, self.overflow = journeys, encodings, Overflow(is_lost)
        self.remembered: RememberedForward | None = None
        self.is_shown = is_lost or are_saved_tensors_hooked()

    def mark(self, position: int) -> None:
        raise AssertionError(f"instruction {position} was marked in a program that has no marks")

    def saw(self, results: Sequence[Any]) -> None:
        raise AssertionError("results were shown in a program that has no marks")

    def made(self, results: Sequence[torch.Tensor | None]) -> None:
        pass


class BoxedCall:
    """A function of one list that it empties, as AOTAutograd wants it."""

    def __init__(self, run: Boxed) -> None:
        self._run = run
        mark_boxed(self)

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        return self._run(args)


@dataclass
class Measured:
    """What an executor has seen so far."""

    forward_s: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT_TIMES))
    backward_s: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT_TIMES))
    timeline: Timeline | None = None
    gradient_error: GradientError | None = None
    num_forward: int = 0
    num_backward: int = 0


@dataclass(frozen=True)
class Program:
    """One half, ready to run: at full speed, or with a mark before every step."""

    run: Boxed
    run_marked: Callable[[], Boxed]
    """Generates the marked program; few steps are watched, so it is made only for them."""

    constants: tuple[Any, ...] = ()
    """Tensors that belong to the program itself."""

    is_watchable: bool = True
    """Whether the storage tracker can follow it."""

    num_fused_ops: int = 0
    """How many of its ops run inside kernels that were compiled for them. A watched step runs them one by one."""


class Executor:
    """One captured graph at run time. Backward's arguments are `num_saved` values from forward, the handle among them,
    then the tangents. `overwrites` are the positions of those that backward writes into. `judge` is told of every step
    that was watched to its end."""

    def __init__(
        self,
        plan: Plan,
        forward: Program,
        backward: Program,
        *,
        handle_position: int,
        num_saved: int,
        overwrites: Sequence[int],
        transfers: Callable[[], Transfers],
        memory: StepMemory | UnplannedMemory,
        exact_rerun: ExactRerun | None = None,
        watched: bool = True,
        judge: Callable[[Plan, WatchedStep], None] | None = None,
    ) -> None:
        self.plan = plan
        self._judge = judge
        self._exact_rerun = exact_rerun
        self.measured = Measured()
        self._graph, self._schedule, self._trips = plan.problem.graph, schedule(plan), trips_of(plan)
        self._transfers = transfers
        self._memory, self._memory_key = memory, next(_NUMBERS)
        self.encodings = Encodings(plan, transfers)
        self._forward_program, self._backward_program = forward, backward
        self._is_watchable = watched and forward.is_watchable and backward.is_watchable
        self._handle_position, self.num_saved, self._overwrites = handle_position, num_saved, overwrites
        self.forward = BoxedCall(self._forward)
        self.backward = BoxedCall(self._backward)

    @property
    def num_fused_ops(self) -> int:
        """How many ops of an ordinary step run inside kernels that were compiled for them."""
        return self._forward_program.num_fused_ops + self._backward_program.num_fused_ops

    def watch_next(self) -> None:
        """Watch the next step, as the first one was."""
        self.measured.timeline = None

    def _forward(self, args: list[Any]) -> Sequence[Any]:
        self.measured.num_forward += 1
        if self.measured.num_forward == 1:
            give_back_garbage(len(self._graph))  # the step's tensors come on top of what the process has now
        with self._memory.half((self._memory_key, "forward"), is_forward=True) as half:
            results = self._forward_of(args)
            half.hold(results[: len(results) - self.num_saved])
        return results

    def _forward_of(self, args: list[Any]) -> Sequence[Any]:
        if self.measured.timeline is None and self._is_watchable:
            return self._forward_watched(args)
        step = OrdinaryStep(self._journeys(), self.encodings)
        self._remember(step, args)
        begin = time.perf_counter()
        with running(step):
            results = self._forward_program.run(args)
        self.measured.forward_s.append(time.perf_counter() - begin)
        return results

    def _backward(self, args: list[Any]) -> Sequence[Any]:
        _refuse_double_backward()
        self.measured.num_backward += 1
        step = self._step_behind(args[self._handle_position])
        make_own(args, self._overwrites, are_shown=step.is_shown)
        tangents = args[self.num_saved :] if step.remembered is not None else []
        with self._memory.half((self._memory_key, "backward"), is_forward=False) as half:
            gradients = self._backward_of(step, args)
            half.hold(gradients)
        if step.remembered is not None and self._exact_rerun is not None:
            remembered, step.remembered = step.remembered, None
            self.measured.gradient_error = self._exact_rerun.compare(remembered, tangents, gradients)
        return gradients

    def _backward_of(self, step: Step, args: list[Any]) -> Sequence[Any]:
        if isinstance(step, WatchedStep) and step.timeline is None:
            return self._backward_watched(step, args)
        begin = time.perf_counter()
        with running(step):
            gradients = self._backward_program.run(args)
        self.measured.backward_s.append(time.perf_counter() - begin)
        return gradients

    def _forward_watched(self, args: list[Any]) -> Sequence[Any]:
        step = WatchedStep(self.plan, self._schedule, self._journeys(), self.encodings)
        self._remember(step, args)
        step.count_inputs(args, self._forward_program.constants)
        program = self._forward_program.run_marked()
        with step.tracker, running(step):
            results = program(args)
        step.end_half()
        return results

    def _backward_watched(self, step: WatchedStep, args: list[Any]) -> Sequence[Any]:
        step.count_tangents(args[self.num_saved :])
        program = self._backward_program.run_marked()
        with step.tracker, running(step):
            gradients = program(args)
        step.end_half()
        self.measured.timeline = step.timeline
        if self._judge is not None:
            self._judge(self.plan, step)
        return gradients

    def _remember(self, step: Step, args: Sequence[Any]) -> None:
        """The first step of a lossy plan will be repeated exactly."""
        if self._exact_rerun is not None and self.measured.num_forward == 1:
            step.remembered = self._exact_rerun.remember(args)

    def _journeys(self) -> Journeys:
        return Journeys(self._trips, self._transfers)

    def _step_behind(self, handle: torch.Tensor) -> Step:
        """The step that a backward belongs to. Without it, only a plan that sends nothing away can go on."""
        step: Step | None = shared_runtime().handles.redeem(handle)
        if step is None and self._trips:
            raise LostHandle(
                f"the backward of {self._graph.name} cannot find the {len(self._trips)} storages its forward sent to"
                " slower"
                " tiers: a saved-tensor hook around the model (torch.autograd.graph.saved_tensors_hooks, save_on_cpu)"
                " replaced the handle to them by a copy. Call the virtualized model outside such hooks; it moves its"
                " own saved tensors."
            )
        return OrdinaryStep(self._journeys(), self.encodings, is_lost=True) if step is None else step


def _refuse_double_backward() -> None:
    """`create_graph=True` asks for a graph of this backward, which a captured backward does not have. AOTAutograd fails
    only when the second backward comes; by that time the reader has lost the line that asked."""
    if is_backward_differentiated():
        raise Unsupported(
            "backward(create_graph=True) differentiates the backward pass itself, and a virtualized model has only"
            " one backward."
            " Call the plain model where you need double backward, or drop create_graph=True (retain_graph=True"
            " works)."
        )
