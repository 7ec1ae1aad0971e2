"""Run one captured graph: its forward, and for each forward its backward.

Enters: the two halves and their plan. Leaves: two callables in AOTAutograd's boxed convention, and what they measured: the time of every
ordinary step and the timeline of a watched one. The first step is watched; later ones run at full speed.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from vdnn.errors import Unsupported
from vdnn.plan.plan import Plan
from vdnn.plan.timeline import Timeline
from vdnn.rewrite.boxed import boxed, marked
from vdnn.rewrite.halves import Half
from vdnn.runtime import handles
from vdnn.runtime.steps import running
from vdnn.runtime.watch import WatchedStep

KEPT_TIMES = 1000
"""How many step times are remembered: enough for a steady median, bounded for runs of a million steps."""


class OrdinaryStep:
    """A step nobody watches."""

    def mark(self, step: int) -> None:
        raise AssertionError(f"step {step} was marked in a program that has no marks")


class BoxedCall:
    """A function of one list that it empties, as AOTAutograd wants it."""

    def __init__(self, run: Callable[[list[Any]], Sequence[Any]]) -> None:
        self._run = run
        self._boxed_call = True  # on the instance: Dynamo's wrappers carry over an instance's attributes, not its class's

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        return self._run(args)


@dataclass
class Measured:
    """What an executor has seen so far."""

    forward_s: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT_TIMES))
    backward_s: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT_TIMES))
    timeline: Timeline | None = None
    num_forward: int = 0
    num_backward: int = 0


class Executor:
    """One captured graph at run time."""

    def __init__(self, plan: Plan, forward: Half, backward: Half) -> None:
        self.plan = plan
        self.measured = Measured()
        self._graph = plan.problem.graph
        self._forward_half, self._backward_half = forward, backward
        self._run_forward, self._run_backward = boxed(forward.module), boxed(backward.module)
        self._handle_position = backward.handle_position
        self._num_saved = _count_saved(backward)
        self.forward = BoxedCall(self._forward)
        self.backward = BoxedCall(self._backward)

    def watch_next(self) -> None:
        """Watch the next step, as the first one was."""
        self.measured.timeline = None

    def _forward(self, args: list[Any]) -> Sequence[Any]:
        self.measured.num_forward += 1
        if self.measured.timeline is None:
            return self._forward_watched(args)
        begin = time.perf_counter()
        with running(OrdinaryStep()):
            results = self._run_forward(args)
        self.measured.forward_s.append(time.perf_counter() - begin)
        return results

    def _backward(self, args: list[Any]) -> Sequence[Any]:
        _refuse_double_backward()
        self.measured.num_backward += 1
        step = handles.redeem(args[self._handle_position])
        if isinstance(step, WatchedStep) and step.timeline is None:
            return self._backward_watched(step, args)
        begin = time.perf_counter()
        gradients = self._run_backward(args)
        self.measured.backward_s.append(time.perf_counter() - begin)
        return gradients

    def _forward_watched(self, args: list[Any]) -> Sequence[Any]:
        step = WatchedStep(self._graph)
        step.count_inputs(args, _constants(self._forward_half))
        program = marked(self._forward_half)
        with step.tracker, running(step):
            results = program(args)
        step.end_half()
        return results

    def _backward_watched(self, step: WatchedStep, args: list[Any]) -> Sequence[Any]:
        step.count_tangents(args[self._num_saved :])
        program = marked(self._backward_half)
        with step.tracker, running(step):
            gradients = program(args)
        step.end_half()
        self.measured.timeline = step.timeline
        return gradients


def _count_saved(backward: Half) -> int:
    """How many of backward's arguments come from forward; the tangents follow."""
    names = [node.name for node in backward.module.graph.find_nodes(op="placeholder")]
    return sum(not name.startswith("tangents") for name in names)


def _constants(half: Half) -> list[Any]:
    module = half.module
    return [getattr(module, str(node.target), None) for node in module.graph.find_nodes(op="get_attr")]


def _refuse_double_backward() -> None:
    """`create_graph=True` asks for a graph of this backward, which a captured backward does not have.

    AOTAutograd runs the backward inside a function named `_double_backward` then, and fails only when the second backward comes; by that time the
    reader has lost the line that asked. We look for that caller, and only when autograd says that the graph is kept at all."""
    if not torch._C._autograd._get_current_graph_task_keep_graph():
        return
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "backward":
        if frame.f_code.co_name == "_double_backward":
            raise Unsupported(
                "backward(create_graph=True) differentiates the backward pass itself, and a virtualized model has only one backward."
                " Call the plain model where you need double backward, or drop create_graph=True (retain_graph=True works)."
            )
        frame = frame.f_back  # type: ignore[assignment]
