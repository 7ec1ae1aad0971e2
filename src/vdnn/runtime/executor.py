"""Run one captured graph: its forward, and for each forward its backward.

Enters: an edition, the two programs of one plan. Leaves: two callables in AOTAutograd's boxed convention, and what they
measured: the time of every ordinary step, the timeline of a watched one, and how long each instruction of a timed step
took. The first step is watched; later ones run at full speed.

Note: [Editions]
A better plan takes over between two steps (`replace_edition`): the next forward runs the new programs, and a backward
those of its own forward, which its step holds. What crosses from forward to backward may differ in number and kind
between editions: AOTAutograd saves all that a forward returns behind its outputs. Two things stay the same, because it
knows them from the first edition: the handle comes first, and as many tensors as before skip autograd's version check.

Note: [Programs before tensors]
To generate a program of a thousand ops takes tens of MiB for a moment, and malloc keeps what it was. So both halves are
generated before the forward of a step that is watched or timed, and what that took goes back to the system before the
first tensor of the step is there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from vdnn.errors import LostHandle, Unsupported
from vdnn.hardware.clocks import Clock, Moment
from vdnn.plan.model.surroundings import Surroundings
from vdnn.plan.plan import Plan
from vdnn.runtime.absent_gradients import NO_TANGENTS
from vdnn.runtime.device_failures import told_with_numbers
from vdnn.runtime.edition import BoxedCall, Edition
from vdnn.runtime.encodings import Encodings
from vdnn.runtime.gradient_error import ExactRerun, overwritten_inputs, remembered_forward, repeated
from vdnn.runtime.measured_steps import Measured
from vdnn.runtime.ordinary_step import OrdinaryStep, TimedStep
from vdnn.runtime.overwritten import make_own
from vdnn.runtime.process_memory import give_back_garbage
from vdnn.runtime.running_step import Step, running
from vdnn.runtime.runtime import shared_runtime
from vdnn.runtime.step_memory import RunningHalf, StepMemory, UnplannedMemory
from vdnn.runtime.steps_in_flight import StepsInFlight
from vdnn.runtime.watched_step import WatchedStep
from vdnn.torch_private import is_backward_differentiated

log = logging.getLogger("vdnn")

HANDLE_POSITION = 0
"""Where the handle stands among backward's arguments, in every edition."""


class Executor:
    """One captured graph at run time. `judge` is told of every step that was watched to its end."""

    def __init__(
        self,
        edition: Edition,
        *,
        memory: StepMemory | UnplannedMemory,
        exact_rerun: ExactRerun | None = None,
        watched: bool = True,
        judge: Callable[[Plan, WatchedStep], None] | None = None,
        judge_surroundings: Callable[[Plan, Surroundings, int], None] | None = None,
    ) -> None:
        self.edition = edition
        self._judge, self._judge_surroundings = judge, judge_surroundings
        self.before_step: Callable[[], None] | None = None
        """Called before a forward begins while no backward is to come: here a better edition may take over."""

        self.times_next = False
        """Whether the next ordinary step is timed instruction by instruction."""

        self.present = 0
        """The tangents that were there in the last backward, one bit each."""

        self._all_outputs: Edition | None = None
        self.was_repeated = False
        """Whether a gradient came that the edition leaves out, so that a step was computed again."""

        self._exact_rerun = exact_rerun
        self._in_flight = StepsInFlight()
        self.measured = Measured(edition.clock)
        self._is_watched, self._memory = watched, memory
        self.forward = BoxedCall(self._forward)
        self.backward = BoxedCall(self._backward)

    @property
    def plan(self) -> Plan:
        return self.edition.plan

    @property
    def encodings(self) -> Encodings:
        return self.edition.encodings

    @property
    def num_saved(self) -> int:
        return self.edition.num_saved

    @property
    def num_in_flight(self) -> int:
        """Steps that wait for their backward."""
        return len(self._in_flight)

    def steps(self) -> list[Step]:
        """Those that wait for their backward, or run. Any thread may ask."""
        return self._in_flight.steps()

    @property
    def num_fused_ops(self) -> int:
        """How many ops of an ordinary step run inside kernels that were compiled for them."""
        return self.edition.forward.num_fused_ops + self.edition.backward.num_fused_ops

    def watch_next(self) -> None:
        """Watch the next step, as the first one was."""
        self.measured.timeline = None

    def replace_edition(self, edition: Edition) -> bool:
        """Let another plan take over from the next forward on, and watch its first step. Note: [Editions]"""
        if edition.num_unchecked != self.edition.num_unchecked:
            return False
        edition.number = self.edition.number + 1
        if edition.tangents is NO_TANGENTS:
            edition.tangents = self.edition.tangents  # of the same step
        self._memory.forget((self.edition.memory_key, "forward"))
        self.edition = edition
        self.measured.forget_times()
        self.watch_next()
        return True

    def leave_out(self, edition: Edition) -> bool:
        """Let one without some tangents take over; the present one is for steps in which they come after all."""
        whole = self.edition
        if not self.replace_edition(edition):
            return False
        self._all_outputs = whole
        return True

    def use_all_outputs(self) -> None:
        """From the next forward on."""
        whole, self._all_outputs, self.was_repeated = self._all_outputs, None, False
        assert whole is not None, "a step is repeated where something is left out"
        self.replace_edition(whole)

    def _repeated_with_all(self, step: Step, tangents: Sequence[Any]) -> Sequence[Any]:
        if step.repeatable is None or self._all_outputs is None:
            raise LostHandle(
                f"the backward of {self.plan.problem.graph.name} has a gradient for an output that the steps before did"
                " not use, and its forward cannot be found to be computed again. Call the virtualized model outside of"
                " saved-tensor hooks."
            )
        log.warning(
            "%s: a loss hangs on outputs that it did not hang on before: this step is computed twice, and all outputs"
            " have gradients from now on",
            self.plan.problem.graph.name,
        )
        self.was_repeated = True
        again = Executor(self._all_outputs, memory=self._memory, watched=False)
        return repeated(step.repeatable, again, tangents)

    def _forward(self, args: list[Any]) -> Sequence[Any]:
        with told_with_numbers("forward", self.plan, self.edition.where):
            return self._run_forward(args)

    def _run_forward(self, args: list[Any]) -> Sequence[Any]:
        if self.before_step is not None and not self._in_flight:
            self.before_step()
        self.measured.num_forward += 1
        self._make_ready()
        key, plan = (self.edition.memory_key, "forward"), self.edition.plan
        with self._memory.half(key, is_forward=True, plan=plan) as half:
            results = self._forward_of(args, half)
            half.hold(results[: len(results) - self.num_saved])
        return results

    def _make_ready(self) -> None:
        """Note: [Programs before tensors]"""
        is_looked_at = self._watches_next or self._is_timed_next
        is_new = is_looked_at and not self.edition.has_marked(checked=self._watches_next)
        if is_new:
            self._memory.make_room()
            self.edition.marked(checked=self._watches_next)
        if is_new or self.measured.num_forward == 1:
            give_back_garbage(len(self.plan.problem.graph))

    @property
    def _watches_next(self) -> bool:
        return self.measured.timeline is None and self._is_watched and self.edition.is_watchable

    @property
    def _is_timed_next(self) -> bool:
        return self.times_next and self.edition.is_watchable

    def _forward_of(self, args: list[Any], half: RunningHalf) -> Sequence[Any]:
        if self._watches_next:
            return self._forward_watched(args, half)
        if self._is_timed_next:
            return self._forward_timed(args)
        step = OrdinaryStep(self.edition)
        self._enter(step, args)
        begin = self.edition.clock.now()
        with running(step):
            results = self.edition.forward.run(args)
        self._in_flight.waits(step)
        step.forward = begin, self.edition.clock.now()
        self.measured.forward_s.add(*step.forward)
        return results

    def _backward(self, args: list[Any]) -> Sequence[Any]:
        with told_with_numbers("backward", self.plan, self.edition.where):
            return self._run_backward(args)

    def _run_backward(self, args: list[Any]) -> Sequence[Any]:
        _refuse_double_backward()
        self.measured.num_backward += 1
        step = self._step_behind(args[HANDLE_POSITION])
        edition: Edition = step.edition
        after_all = edition.tangents.with_left_out(args)
        self.present = present = edition.tangents.fill(args)
        make_own(args, edition.overwrites, are_shown=step.is_shown)
        tangents = args[edition.num_saved :] if step.remembered is not None else []
        num_in_flight, num_left = max(len(self._in_flight), 1), self._in_flight.num_left(step)
        key = edition.memory_key, "backward"
        with self._memory.half(key, is_forward=False, plan=edition.plan) as half:
            found = Surroundings(num_in_flight, self._memory.outside_nbytes)
            gradients = edition.tangents.kept(self._backward_of(step, args, half), present)
            half.hold(gradients)
        if after_all:
            del gradients
            gradients = self._repeated_with_all(step, after_all)
        if self._judge_surroundings is not None:
            self._judge_surroundings(edition.plan, found, num_left)
        if step.remembered is not None and self._exact_rerun is not None:
            remembered, step.remembered = step.remembered, None
            self.measured.gradient_error = self._exact_rerun.compare(remembered, tangents, gradients)
        return gradients

    def _backward_of(self, step: Step, args: list[Any], half: RunningHalf) -> Sequence[Any]:
        if isinstance(step, WatchedStep) and step.timeline is None:
            return self._backward_watched(step, args, half)
        if isinstance(step, TimedStep):
            return self._backward_timed(step, args)
        begin = step.edition.clock.now()
        with running(step, is_end=True):
            gradients = step.edition.backward.run(args)
        self._note_backward((begin, step.edition.clock.now()), step)
        return gradients

    def _forward_timed(self, args: list[Any]) -> Sequence[Any]:
        self.times_next = False
        step = TimedStep(self.edition)
        self._enter(step, args)
        with running(step):
            results = self.edition.marked(checked=False)[0](args)
        self._in_flight.waits(step)
        step.end_half()
        return results

    def _backward_timed(self, step: TimedStep, args: list[Any]) -> Sequence[Any]:
        with running(step, is_end=True):
            gradients = step.edition.marked(checked=False)[1](args)
        step.end_half()
        if step.edition is self.edition:
            self.measured.timed_steps.append(step.times)
            self.measured.last = step.times.in_all_s
        return gradients

    def _forward_watched(self, args: list[Any], half: RunningHalf) -> Sequence[Any]:
        edition = self.edition
        step = WatchedStep(edition.plan, edition.schedule, edition.journeys(), edition.encodings, edition.where)
        step.edition, step.half = edition, half
        self._enter(step, args)
        step.count_inputs(args, edition.forward.constants)
        program, _ = edition.marked(checked=True)
        with step.tracker, running(step):
            results = program(args)
        self._in_flight.waits(step)
        step.end_half()
        return results

    def _backward_watched(self, step: WatchedStep, args: list[Any], half: RunningHalf) -> Sequence[Any]:
        edition: Edition = step.edition
        step.half = half
        step.count_tangents(args[edition.num_saved :])
        _, program = edition.marked(checked=True)
        with step.tracker, running(step, is_end=True):
            gradients = program(args)
        step.end_half()
        edition.forget_marked()
        self._note_timeline(step)
        if self._judge is not None:
            self._judge(edition.plan, step)
        return gradients

    def _note_timeline(self, step: WatchedStep) -> None:
        """What an edition did that nobody follows any more is not reported."""
        if step.edition is self.edition:
            timeline = self.measured.timeline = step.timeline
            self.measured.last = lambda: None if timeline is None else timeline.duration_s

    def _note_backward(self, span: tuple[Moment, Moment], step: Step) -> None:
        if step.edition is self.edition:
            self.measured.backward_s.add(*span)
            self.measured.last = partial(_both_s, self.edition.clock, getattr(step, "forward", None), span)

    def _enter(self, step: Step, args: Sequence[Any]) -> None:
        """The first step of a lossy plan will be repeated exactly."""
        self._in_flight.begins(step)
        if self.edition.tangents.left_out:
            step.repeatable = remembered_forward(args, overwritten_inputs(self.plan.problem.graph))
        if self._exact_rerun is not None and self.measured.num_forward == 1:
            step.remembered = self._exact_rerun.remember(args)

    def _step_behind(self, handle: torch.Tensor) -> Step:
        """The step that a backward belongs to. Without it, only a plan that sends nothing away can go on."""
        handles = shared_runtime().handles
        step: Step | None = handles.redeem(handle)
        is_of_another = handles.note(handle) != self.edition.number
        if step is None and (self.edition.trips or is_of_another):
            missing = (
                "plan that its forward followed, which is another by now" if is_of_another else _away(self.edition)
            )
            raise LostHandle(
                f"the backward of {self.plan.problem.graph.name} cannot find the {missing}: a saved-tensor hook around"
                " the model (torch.autograd.graph.saved_tensors_hooks, save_on_cpu)"
                " replaced the handle to it by a copy. Call the virtualized model outside such hooks; it moves its"
                " own saved tensors."
            )
        return OrdinaryStep(self.edition, is_lost=True) if step is None else step


def _both_s(clock: Clock, forward: tuple[Moment, Moment] | None, backward: tuple[Moment, Moment]) -> float | None:
    """What a forward and its backward took, once they are past."""
    if forward is None or not clock.is_past(backward[1]):
        return None
    return clock.seconds(*forward) + clock.seconds(*backward)


def _away(edition: Edition) -> str:
    return f"{len(edition.trips)} storages its forward sent to slower tiers"


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
