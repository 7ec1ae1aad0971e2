"""The two programs of one plan, ready to run, and the convention by which PyTorch calls them.

Enters: generated halves. Leaves: an `Edition`, of which an executor runs one at a time and lets another take over
(Note: [Editions] in `executor.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from vdnn.hardware.clocks import clock_of
from vdnn.hardware.where import CPU
from vdnn.plan.judge.schedule import schedule
from vdnn.plan.plan import Plan
from vdnn.runtime.absent_gradients import NO_TANGENTS, Tangents
from vdnn.runtime.encodings import Encodings
from vdnn.runtime.journeys import Journeys, trips_of
from vdnn.runtime.transfers.interface import Transfers
from vdnn.torch_private import mark_boxed

Boxed = Callable[[list[Any]], Sequence[Any]]

_NUMBERS = itertools.count()


class BoxedCall:
    """A function of one list that it empties, as AOTAutograd wants it."""

    takes_absent = True
    """Of a forward: its backward takes None for the gradient of an output that nobody used."""

    def __init__(self, run: Boxed) -> None:
        self._run = run
        mark_boxed(self)

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        return self._run(args)


@dataclass(frozen=True)
class Program:
    """One half, ready to run: at full speed, or with a mark before every step."""

    run: Boxed
    run_marked: Callable[..., Boxed]
    """Generates the marked program; few steps are watched, so it is made only for them. With `checked=False` results
    are not looked at."""

    constants: tuple[Any, ...] = ()
    """Tensors that belong to the program itself."""

    is_watchable: bool = True
    """Whether the storage tracker can follow it."""

    num_fused_ops: int = 0
    """How many of its ops run inside kernels that were compiled for them. A watched step runs them one by one."""


@dataclass
class Edition:
    """The two programs of one plan. Backward's arguments are `num_saved` values from forward, the handle first, then
    the tangents. `overwrites` are the positions of those that backward writes into; `num_unchecked` of them skip
    autograd's version check."""

    plan: Plan
    forward: Program
    backward: Program
    num_saved: int
    overwrites: Sequence[int]
    num_unchecked: int
    transfers: Callable[[], Transfers]
    where: torch.device = CPU
    """Where it computes."""

    number: int = 0
    """How many were before it."""

    tangents: Tangents = NO_TANGENTS

    def __post_init__(self) -> None:
        self.clock = clock_of(self.where)
        self.schedule, self.trips = schedule(self.plan), trips_of(self.plan)
        self.encodings = Encodings(self.plan, self.transfers)
        self._marked: tuple[bool, tuple[Boxed, Boxed]] | None = None
        self.memory_key = next(_NUMBERS)

    @property
    def is_watchable(self) -> bool:
        return self.forward.is_watchable and self.backward.is_watchable

    def journeys(self) -> Journeys:
        return Journeys(self.trips, self.transfers)

    def has_marked(self, *, checked: bool) -> bool:
        return self._marked is not None and self._marked[0] == checked

    def marked(self, *, checked: bool) -> tuple[Boxed, Boxed]:
        """Both halves with marks, made once for several steps. Note: [Programs before tensors]"""
        if self._marked is None or self._marked[0] != checked:
            programs = self.forward.run_marked(checked=checked), self.backward.run_marked(checked=checked)
            self._marked = checked, programs
        return self._marked[1]

    def forget_marked(self) -> None:
        """Nobody looks at this edition for now."""
        self._marked = None
