"""A program for the outputs that the loss hangs on, when the first backward has shown which.

Enters: an executor after its first backward, and the step as it was traced, with the gradients of all outputs. Leaves:
an edition without those that were absent: a language model that returns its logits beside the loss has no gradient of
their size in its plan. The one idea: **what was not asked for once is left out, and made up for when it is asked for**.
A backward that is given a gradient which its edition leaves out is computed again, forward and backward, by the edition
of all (`runtime/executor.py`), which has the same bits; from then on that one runs.

Not done where a step that is repeated would need more than is at hand: pieces of a model, whose inputs would have to be
held; with a budget, a step that writes into its buffers.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from dataclasses import replace

from vdnn.capture.eager_kernels import eager_kernels
from vdnn.capture.tangents import without_tangents
from vdnn.compile.session import Session
from vdnn.compile.traced_step import TracedStep
from vdnn.hardware.where import CPU
from vdnn.ir import Graph, Role
from vdnn.runtime.absent_gradients import Tangents
from vdnn.runtime.edition import Edition
from vdnn.runtime.executor import Executor
from vdnn.runtime.gradient_error import overwritten_inputs
from vdnn.units import format_nbytes

log = logging.getLogger("vdnn")

WORTH = 64
"""What part of the peak the absent gradients must be: planning again takes about as long as planning."""


Hook = Callable[[], None]

AnotherEdition = tuple[Edition, Callable[[], Hook | None]]
"""And what to call before each of its steps, once it runs."""


class UsedOutputs:
    """Of one executor. `make` plans the step without some tangents."""

    def __init__(self, executor: Executor, step: TracedStep, make: Callable[[TracedStep], AnotherEdition]) -> None:
        self._executor = weakref.ref(executor)
        self._step: TracedStep | None = step
        self._make = make
        self._then = self._with_all = executor.before_step

    def before_step(self) -> None:
        executor = self._executor()
        if executor is None:
            return
        if self._step is not None and executor.measured.num_backward:
            step, self._step = self._step, None
            self._leave_out_absent(executor, step)
        if executor.was_repeated:
            executor.use_all_outputs()
            self._then = self._with_all
        if self._then is not None:
            self._then()

    def _leave_out_absent(self, executor: Executor, step: TracedStep) -> None:
        tangents, present = executor.edition.tangents, executor.present
        absent = tangents.all & ~present
        before_nbytes, is_bound = executor.plan.peak_nbytes, executor.plan.problem.budget_nbytes is not None
        is_worth_it = present and tangents.nbytes_of(absent) * WORTH >= before_nbytes
        if not is_worth_it or not can_be_repeated(executor.plan.problem.graph, tangents, is_bound=is_bound):
            return
        with eager_kernels():
            joint = without_tangents(step.joint, absent)
        if joint is None:
            return
        edition, hook = self._make(replace(step, joint=joint))
        edition.tangents = replace(tangents, left_out=absent)
        if executor.leave_out(edition):
            after, before = format_nbytes(edition.plan.peak_nbytes), format_nbytes(before_nbytes)
            log.info("%s: peak %s -> %s without gradients of unused outputs", step.name, before, after)
            self._then = hook()


def can_be_repeated(graph: Graph, tangents: Tangents, *, is_bound: bool) -> bool:
    """Whether its arguments are there in backward anyway, and copies of what it overwrites are in no account."""
    roles = [graph.storages[graph.values[value].storage].role for value in graph.inputs]
    is_piece = any(hangs and role is Role.INPUT for hangs, role in zip(tangents.behind, roles, strict=False))
    return not is_piece and not (is_bound and overwritten_inputs(graph))


def may_leave_out(step: TracedStep, session: Session) -> bool:
    """Where nothing else is exchanged or looked at in its first steps."""
    options = session.options
    is_plain = options.plan is None and options.compiler == "eager" and options.exact and options.lossy is None
    return is_plain and session.part is None and step.where == CPU
