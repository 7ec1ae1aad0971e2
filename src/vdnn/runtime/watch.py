"""One training step that is watched: bytes by role at every step of the plan, and when each step ran.

Enters: the calls of generated code (`mark`) and the storage tracker's counts. Leaves: a measured `Timeline`, of the
same type as the simulated one. A watched step is slower than an ordinary one, so step times come from ordinary steps
and bytes from watched ones.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from vdnn.ir import Graph, Role
from vdnn.plan.timeline import COMPUTE, ROLES, Lane, Timeline
from vdnn.runtime.tracker import StorageTracker


class WatchedStep:
    """Follows one forward and its backward. `timeline` is there once every step of the graph has run."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._step = -1
        self._columns = np.zeros((len(ROLES), len(graph)), dtype=np.int64)
        self._begin_s = np.zeros(len(graph))
        self._end_s = np.zeros(len(graph))
        self._origin_s = time.perf_counter()
        self.tracker = StorageTracker(self._role_of_result)
        self.timeline: Timeline | None = None

    def count_inputs(self, tensors: Sequence[Any], constants: Iterable[Any]) -> None:
        """What exists before the step, by the roles the graph gives it."""
        roles = (self._role_of_value(value) for value in self._graph.inputs)
        for tensor, role in zip(tensors, roles, strict=False):
            self.tracker.count_all([tensor], role)
        self.tracker.count_all(constants, Role.BUFFER)

    def count_tangents(self, tensors: Iterable[Any]) -> None:
        self.tracker.count_all(tensors, Role.GRADIENT_MAP)
        self.tracker.settle()

    def mark(self, step: int) -> None:
        now = time.perf_counter() - self._origin_s
        self._close_step(now)
        self._step = step
        self._begin_s[step] = now

    def end_half(self) -> None:
        """Forward or backward is over; after the last step of the graph the timeline is complete."""
        self._close_step(time.perf_counter() - self._origin_s)
        if self._step == len(self._graph) - 1:
            self.tracker.close()
            self.timeline = self._as_timeline()
        self._step = -1

    def _close_step(self, now_s: float) -> None:
        if self._step >= 0:
            self._columns[:, self._step] = self.tracker.settle()
            self._end_s[self._step] = now_s
        else:
            self.tracker.settle()

    def _as_timeline(self) -> Timeline:
        steps = np.arange(len(self._graph))
        labels = tuple(op.name for op in self._graph.ops)
        lane = Lane(steps, self._begin_s, self._end_s)
        return Timeline("measured", "device", labels, steps, {"device": self._columns}, {COMPUTE: lane})

    def _role_of_result(self, position: int) -> Role:
        writes = self._graph.ops[self._step].writes if self._step >= 0 else ()
        return self._role_of_value(writes[position]) if position < len(writes) else Role.FEATURE_MAP

    def _role_of_value(self, value: int) -> Role:
        return self._graph.storages[self._graph.values[value].storage].role
