"""Steps that nobody watches: at full speed, or timed instruction by instruction. Watched ones: `watched_step.py`.

Enters: an edition, and the calls that its programs make (`running_step.py`). Leaves: when halves, or instructions,
began and ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from vdnn.hardware.clocks import Moment
from vdnn.runtime.edition import Edition
from vdnn.runtime.encodings import Overflow
from vdnn.runtime.gradient_error import RememberedForward
from vdnn.runtime.measured_steps import InstructionTimes
from vdnn.torch_private import are_saved_tensors_hooked


class OrdinaryStep:
    """A step nobody watches."""

    def __init__(self, edition: Edition, *, is_lost: bool = False) -> None:
        self.edition = edition
        self.journeys, self.encodings, self.overflow = edition.journeys(), edition.encodings, Overflow(is_lost)
        self.remembered: RememberedForward | None = None
        self.repeatable: RememberedForward | None = None
        """Where some outputs' gradients are left out and may come after all."""
        self.forward: tuple[Moment, Moment] | None = None
        """When its forward began and ended."""
        self.is_shown = is_lost or are_saved_tensors_hooked()

    def mark(self, position: int) -> None:
        raise AssertionError(f"instruction {position} was marked in a program that has no marks")

    def saw(self, results: Sequence[Any]) -> None:
        raise AssertionError("results were shown in a program that has no marks")

    def made(self, results: Sequence[torch.Tensor | None]) -> None:
        pass


class TimedStep(OrdinaryStep):
    """A step that notes when each instruction began, and nothing else."""

    def __init__(self, edition: Edition) -> None:
        super().__init__(edition)
        self._begins: list[tuple[int, Moment]] = []
        self.times = InstructionTimes(edition.clock)

    def mark(self, position: int) -> None:
        self._begins.append((position, self.times.clock.now()))

    def end_half(self) -> None:
        ends = [begin for _, begin in self._begins[1:]]
        ends.append(self.times.clock.now())
        self.times.spans |= {position: (begin, end) for (position, begin), end in zip(self._begins, ends, strict=True)}
        self._begins.clear()
