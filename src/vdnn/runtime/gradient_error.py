"""How far the gradients of a lossy step are from the exact ones, measured by running the first step a second time.

Enters: the arguments of a forward, the tangents and gradients of its backward. Leaves: a `GradientError`. The same
step is run once more under an exact plan, on the same inputs, from the same state of the random generators, after the
lossy gradients are there and everything else of the lossy step is gone: with a budget, both runs stay inside it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Protocol

import torch

from vdnn.ir import Graph, Trait
from vdnn.plan.model.findings import GradientError
from vdnn.runtime.random_states import random_states, set_random_states


class ExactStep(Protocol):
    """An executor of the same graph under an exact plan."""

    @property
    def num_saved(self) -> int: ...

    def forward(self, args: list[Any]) -> Sequence[Any]: ...

    def backward(self, args: list[Any]) -> Sequence[Any]: ...


@dataclass
class RememberedForward:
    """A forward that can be repeated: its arguments, those that it overwrites as copies, and the random state."""

    args: list[Any]
    random_states: list[tuple[torch.device, torch.Tensor]]


class ExactRerun:
    """Repeats one step exactly. `make_exact` builds the exact executor, or says why there is none."""

    def __init__(self, graph: Graph, names: Sequence[str], make_exact: Callable[[], ExactStep | str]) -> None:
        self._overwritten = overwritten_inputs(graph)
        self._names = names
        self._make_exact = make_exact

    def remember(self, args: Sequence[Any]) -> RememberedForward:
        return remembered_forward(args, self._overwritten)

    def compare(
        self, remembered: RememberedForward, tangents: Sequence[Any], gradients: Sequence[torch.Tensor | None]
    ) -> GradientError:
        exact = self._make_exact()
        if isinstance(exact, str):
            return GradientError(None, note=exact)
        return difference(self._names, gradients, repeated(remembered, exact, tangents))


def remembered_forward(args: Sequence[Any], overwritten: Container[int]) -> RememberedForward:
    copies = [arg.clone() if position in overwritten else arg for position, arg in enumerate(args)]
    return RememberedForward(copies, random_states(args))


def repeated(remembered: RememberedForward, step: ExactStep, tangents: Sequence[Any]) -> Sequence[torch.Tensor | None]:
    """The gradients of that forward for these tangents. Random numbers go on as if nothing had been repeated."""
    now = random_states(remembered.args)
    set_random_states(remembered.random_states)
    try:
        saved = list(step.forward(list(remembered.args)))[-step.num_saved :]
        return step.backward([*saved, *tangents])
    finally:
        set_random_states(now)


def difference(names: Sequence[str], found: Sequence[Any], expected: Sequence[Any]) -> GradientError:
    """Of gradients by these names from those that were expected."""
    squares: list[tuple[float, float, str]] = []
    for name, ours, exact in zip(names, found, expected, strict=True):
        if isinstance(ours, torch.Tensor) and isinstance(exact, torch.Tensor) and exact.is_floating_point():
            off = float(torch.linalg.vector_norm((ours - exact).double())) ** 2
            squares.append((off, float(torch.linalg.vector_norm(exact.double())) ** 2, name))
    whole_off, whole = sum(off for off, _, _ in squares), sum(size for _, size, _ in squares)
    worst, worst_name = max(((_relative(off, size), name) for off, size, name in squares), default=(0.0, ""))
    return GradientError(_relative(whole_off, whole), worst, worst_name)


def _relative(off: float, size: float) -> float:
    """Infinite where there is nothing to compare with, or what there is is not a number."""
    error = 0.0 if off == 0 else (off / size) ** 0.5 if size > 0 else inf
    return error if error >= 0 else inf


def overwritten_inputs(graph: Graph) -> frozenset[int]:
    """Arguments that the step writes into: running statistics, counters."""
    changing = (op for op in graph.ops if not op.has(Trait.VIEW))
    written = {graph.values[value].storage for op in changing for value in op.writes}
    return frozenset(p for p, value in enumerate(graph.inputs) if graph.values[value].storage in written)
