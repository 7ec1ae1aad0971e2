"""What a report is made of: the figures of one timeline, a captured piece, and all pieces together.

Enters: timelines with the graph they ran, through `summarize`. Leaves: frozen values that `record.py` writes as JSON
and `text.py` shows. The one idea: a prediction is worth what its comparison is worth, so both sides are the same type
made by the same function.

A model whose capture breaks is several pieces, each with its own forward and backward. Their times add up; their peaks
do not, and neither is their maximum the peak of the process: what earlier pieces stash stays alive while later ones
run. The totals therefore name the peak of the largest piece, and the text says so.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from statistics import median

from vdnn.ir import Graph
from vdnn.plan.model.findings import Density, GradientError
from vdnn.plan.model.timeline import Timeline
from vdnn.report.eager_part import EagerPart
from vdnn.report.process_part import ProcessPart


@dataclass(frozen=True, slots=True)
class TimelineSummary:
    """One timeline in a few figures. `step_time_s` is the median over `num_steps` training steps (simulated: one)."""

    source: str
    peak_nbytes: int
    peak_step: str
    peak_module: str
    nbytes_by_role: Mapping[str, int]
    step_time_s: float
    num_steps: int = 1

    def __post_init__(self) -> None:
        if self.num_steps < 1:
            raise ValueError(f"a summary is of at least one training step, not {self.num_steps}")


@dataclass(frozen=True, slots=True)
class Piece:
    """One captured graph of a model. `measured` is None until the piece has run a whole training step.

    `gradient_error` is there when the plan is lossy and a step has run, `density` when it has sparse encodings.
    `inexact` names the ops that run in a form whose bits are not the op's own, `nondeterministic` those whose kernels
    may leave other bits in the next run, plain or not, as PyTorch lists them for the accelerator that computes.
    `other_bits` names those whose trace has other last bits than eager mode; `gradient_error` is there for them too.
    """

    name: str
    predicted: TimelineSummary
    measured: TimelineSummary | None = None
    gradient_error: GradientError | None = None
    density: Density | None = None
    inexact: tuple[str, ...] = ()
    nondeterministic: tuple[str, ...] = ()
    other_bits: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Totals:
    """All pieces together: the peak of the largest, the sum of the times. `peak_piece` says whose peak it is."""

    peak_nbytes: int
    peak_piece: str
    step_time_s: float


@dataclass(frozen=True, slots=True)
class ReportData:
    """What the last training steps of a virtualized model did, next to what was planned for them."""

    name: str
    strategy: str
    budget_nbytes: int | None
    pieces: tuple[Piece, ...]
    versions: Mapping[str, str] = field(default_factory=lambda: versions())
    eager: EagerPart | None = None
    """What could not be captured, and ran as it is in a tensor cache."""
    process: ProcessPart | None = None
    """None where the system does not tell what a process takes."""
    verified: tuple[str, ...] = ()
    """Of first steps that were to be held against plain PyTorch: what was found, a sentence for each."""

    @property
    def predicted(self) -> Totals:
        return _totals([(piece.name, piece.predicted) for piece in self.pieces])

    @property
    def measured(self) -> Totals | None:
        """None unless every piece has run."""
        sides = [(piece.name, piece.measured) for piece in self.pieces if piece.measured is not None]
        return _totals(sides) if sides and len(sides) == len(self.pieces) else None


def summarize(timeline: Timeline, graph: Graph, step_times_s: Sequence[float] = ()) -> TimelineSummary:
    """The figures of a timeline. `step_times_s`: wall times of whole training steps; without them its own duration."""
    at = timeline.peak_at
    moment = int(timeline.moments[at]) if len(timeline.moments) else 0
    return TimelineSummary(
        source=timeline.source,
        peak_nbytes=timeline.peak_nbytes,
        peak_step=timeline.labels[at] if timeline.labels else "",
        peak_module=graph.ops[moment].module if 0 <= moment < len(graph) else "",
        nbytes_by_role={str(role): nbytes for role, nbytes in timeline.by_role(at).items()} if timeline.labels else {},
        step_time_s=median(step_times_s) if step_times_s else timeline.duration_s,
        num_steps=max(len(step_times_s), 1),
    )


def versions() -> dict[str, str]:
    """Of what shaped the figures; read from package metadata, so that nothing heavy is imported."""
    found = {"python": platform.python_version()}
    for package in ("vdnn", "torch"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def _totals(sides: Sequence[tuple[str, TimelineSummary]]) -> Totals:
    if not sides:
        return Totals(0, "", 0.0)
    name, largest = max(sides, key=lambda side: side[1].peak_nbytes)
    return Totals(largest.peak_nbytes, name, sum(summary.step_time_s for _, summary in sides))
