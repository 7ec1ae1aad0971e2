"""One training step that is watched: bytes by role at every instruction of the plan's program, and when each ran.

Enters: the calls of generated code (`mark`) and the storage tracker's counts. Leaves: a measured `Timeline`, of the
same type as the simulated one and of the same length, instruction by instruction. A watched step is slower than an
ordinary one, so step times come from ordinary steps and bytes from watched ones.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from vdnn.hardware.clocks import Moment, clock_of
from vdnn.hardware.where import CPU, indexed
from vdnn.ir import Role
from vdnn.plan.judge.schedule import Instruction, Kind
from vdnn.plan.model.timeline import COMPUTE, ROLES, Lane, Timeline
from vdnn.plan.plan import Plan
from vdnn.runtime.encodings import Encodings, Overflow
from vdnn.runtime.gradient_error import RememberedForward
from vdnn.runtime.journeys import Journeys
from vdnn.runtime.step_memory import RunningHalf
from vdnn.runtime.tracker import StorageTracker
from vdnn.torch_private import are_saved_tensors_hooked


class WatchedStep:
    """Follows one forward and its backward. `timeline` is there once the last instruction of the program has run."""

    def __init__(
        self,
        plan: Plan,
        program: Sequence[Instruction],
        journeys: Journeys,
        encodings: Encodings,
        where: torch.device = CPU,
    ) -> None:
        self.journeys, self.encodings, self.overflow = journeys, encodings, Overflow()
        self.remembered: RememberedForward | None = None
        self.repeatable: RememberedForward | None = None
        self.is_shown = are_saved_tensors_hooked()
        self.edition: Any = None
        self._graph, self._program = plan.problem.graph, program
        self._workspaces = plan.timeline.nbytes[plan.timeline.device][ROLES.index(Role.WORKSPACE)]
        self._position = -1
        self._columns = np.zeros((len(ROLES), len(program)), dtype=np.int64)
        self._where, self._clock = where, clock_of(where)
        self._begins: dict[int, Moment] = {}
        self._ends: dict[int, Moment] = {}
        # Weakly: a step in a cycle would keep what it sent away until the garbage collector comes.
        role_of_result = weakref.WeakMethod(self._role_of_result)
        self.tracker = StorageTracker(lambda position: _ask(role_of_result, position), where=where)
        weakref.finalize(self, self.tracker.close).atexit = False
        self.half = RunningHalf()
        """Of the memory that it runs in: told of every instruction as it begins, and of its results."""
        self.timeline: Timeline | None = None
        self.num_backwards = 0
        """How often its backward has begun: more than once if it was interrupted."""
        self.larger: dict[int, int] = {}
        """By position in the graph, the bytes of storages that turned out larger than planned."""

    def count_inputs(self, tensors: Sequence[Any], constants: Iterable[Any]) -> None:
        """What exists before the step, by the roles the graph gives it."""
        roles = (self._role_of_value(value) for value in self._graph.inputs)
        for tensor, role in zip(tensors, roles, strict=False):
            self.tracker.count_all([tensor], role)
        self._compare(tensors, self._graph.inputs)
        self.tracker.count_all(constants, Role.BUFFER)

    def count_tangents(self, tensors: Sequence[Any]) -> None:
        self.num_backwards += 1
        self._compare(tensors, self._graph.tangents)
        self.tracker.count_all(tensors, Role.GRADIENT_MAP)
        self.tracker.settle()

    def mark(self, position: int) -> None:
        now = self._clock.now()
        self._close_instruction(now)
        self._position = position
        self.half.at(position)
        self._begins[position] = now

    def saw(self, results: Sequence[Any]) -> None:
        """Results of the op that was marked last, by position."""
        instruction = self._program[self._position]
        if instruction.op >= 0:
            tensors = [result for result in results if isinstance(result, torch.Tensor)]
            writes = self._graph.ops[instruction.op].writes
            self._compare(tensors, writes)
            storages = [self._graph.values[value].storage for value in writes]
            self.half.got(self._position, list(zip(storages, tensors, strict=False)))

    def _compare(self, tensors: Sequence[Any], values: Sequence[int]) -> None:
        for tensor, value in zip(tensors, values, strict=False):
            storage = self._graph.values[value].storage
            is_here = isinstance(tensor, torch.Tensor) and indexed(tensor.device) == self._where
            nbytes = tensor.untyped_storage().nbytes() if is_here else 0
            if nbytes > self._graph.storages[storage].nbytes:
                self.larger[storage] = max(nbytes, self.larger.get(storage, 0))

    def made(self, results: Sequence[Any]) -> None:
        """Results of one op, by position, that were made out of the tracker's sight."""
        for position, tensor in enumerate(tensor for tensor in results if tensor is not None):
            self.tracker.count(tensor, self._role_of_result(position))

    def end_half(self) -> None:
        """Forward or backward is over; after the last instruction the timeline is complete."""
        self._close_instruction(self._clock.now())
        if self._position == len(self._program) - 1:
            self.tracker.close()
            self.timeline = self._as_timeline()
        self._position = -1

    def _close_instruction(self, now: Moment) -> None:
        if self._position >= 0:
            self._columns[:, self._position] = self.tracker.settle()
            self._ends[self._position] = now
        else:
            self.tracker.settle()

    def _as_timeline(self) -> Timeline:
        labels = tuple(instruction.label(self._graph) for instruction in self._program)
        moments = np.array([instruction.moment for instruction in self._program], dtype=np.int64)
        # What ops allocate inside themselves was measured op by op, where the plan has it: no tracker of tensors sees
        # it
        self._columns[ROLES.index(Role.WORKSPACE)] = self._workspaces
        # Nor does it see what lies beside the step: an optimizer's state is what the optimizer is known to keep.
        states = (s.nbytes for s in self._graph.storages if s.role is Role.OPTIMIZER_STATE)
        self._columns[ROLES.index(Role.OPTIMIZER_STATE)] = sum(states)
        lane = Lane(np.arange(len(self._program)), *map(self._seconds, (self._begins, self._ends)))
        return Timeline("measured", "device", labels, moments, {"device": self._columns}, {COMPUTE: lane})

    def _seconds(self, moments: Mapping[int, Moment]) -> np.ndarray[Any, Any]:
        """From the first instruction on; of one that did not run, 0."""
        origin, positions = self._begins[0], range(len(self._program))
        return np.array([self._clock.seconds(origin, moments[p]) if p in moments else 0.0 for p in positions])

    def _role_of_result(self, position: int) -> Role:
        if self._position < 0:
            return Role.FEATURE_MAP
        instruction = self._program[self._position]
        if instruction.kind in (Kind.FETCH, Kind.ENCODE, Kind.DECODE):
            return self._graph.storages[instruction.storage].role
        writes = self._graph.ops[instruction.op].writes if instruction.op >= 0 else ()
        return self._role_of_value(writes[position]) if position < len(writes) else Role.FEATURE_MAP

    def _role_of_value(self, value: int) -> Role:
        return self._graph.storages[self._graph.values[value].storage].role


def _ask(role_of_result: weakref.WeakMethod[Any], position: int) -> Role:
    method = role_of_result()
    role: Role = Role.FEATURE_MAP if method is None else method(position)
    return role
