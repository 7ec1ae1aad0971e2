"""What an executor has seen of its steps: times, the timeline of a watched step, and how far gradients are from exact.

Enters: moments of the clock of the device that computes. Leaves: seconds, once the device is past them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from vdnn.hardware.clocks import Clock, Moment, Spans
from vdnn.plan.model.findings import GradientError
from vdnn.plan.model.timeline import Timeline

KEPT_TIMES = 1000
"""How many step times are remembered: enough for a steady median, bounded for runs of a million steps."""


@dataclass
class InstructionTimes:
    """When each instruction of a timed step began and ended, by position. Holds nothing of the step."""

    clock: Clock
    spans: dict[int, tuple[Moment, Moment]] = field(default_factory=dict)

    @property
    def is_past(self) -> bool:
        return all(self.clock.is_past(end) for _, end in self.spans.values())

    @property
    def seconds(self) -> dict[int, float]:
        return {position: self.clock.seconds(*span) for position, span in self.spans.items()}

    def in_all_s(self) -> float | None:
        """None while the device is not there yet."""
        return sum(self.seconds.values()) if self.is_past else None


@dataclass
class Measured:
    """What an executor has seen so far. An accelerator's times are known once it is past them."""

    clock: Clock
    forward_s: Spans = field(init=False)
    backward_s: Spans = field(init=False)
    timeline: Timeline | None = None
    gradient_error: GradientError | None = None
    num_forward: int = 0
    num_backward: int = 0
    last: Callable[[], float | None] = field(default=lambda: None)
    """What the last step of this edition took, however it was run; None where that is not known yet."""

    timed_steps: list[InstructionTimes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.forward_s, self.backward_s = (Spans(self.clock, KEPT_TIMES) for _ in range(2))

    @property
    def last_s(self) -> float | None:
        return self.last()

    @property
    def timed(self) -> list[dict[int, float]]:
        """Of every timed step of this edition: seconds by position of the instruction."""
        return [step.seconds for step in self.timed_steps if step.is_past]

    @property
    def num_timed(self) -> int:
        return sum(step.is_past for step in self.timed_steps)

    def settle(self) -> None:
        """Wait for what is under way."""
        self.forward_s.settle()
        self.backward_s.settle()

    def forget_times(self) -> None:
        """The steps of another edition take another time."""
        self.forward_s.clear()
        self.backward_s.clear()
        self.timed_steps.clear()
        self.last = lambda: None
