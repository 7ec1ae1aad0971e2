"""The report of a virtualized model: for every captured piece, what was predicted beside what was measured.

Enters: timelines with the graph they ran, through `summarize`. Leaves: a frozen `Report` with a schema name and a
version, and its JSON. The one idea: a prediction is worth what its comparison is worth, so both sides are the same type
made by the same function.

A model whose capture breaks is several pieces, each with its own forward and backward. Their times add up; their peaks
do not, and neither is their maximum the peak of the process: what earlier pieces stash stays alive while later ones
run. The totals therefore name the peak of the largest piece, and the text says so.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from statistics import median
from typing import Any

from vdnn.errors import InvalidInput
from vdnn.ir import Graph
from vdnn.plan.model.findings import Density, GradientError
from vdnn.plan.model.timeline import Timeline

SCHEMA = "vdnn.report"
VERSION = 1


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
    `inexact` names the ops that run in a form whose bits are not the op's own.
    """

    name: str
    predicted: TimelineSummary
    measured: TimelineSummary | None = None
    gradient_error: GradientError | None = None
    density: Density | None = None
    inexact: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Totals:
    """All pieces together: the peak of the largest, the sum of the times. `peak_piece` says whose peak it is."""

    peak_nbytes: int
    peak_piece: str
    step_time_s: float


@dataclass(frozen=True, slots=True)
class Report:
    """What the last training steps of a virtualized model did, next to what was planned for them."""

    name: str
    strategy: str
    budget_nbytes: int | None
    pieces: tuple[Piece, ...]
    versions: Mapping[str, str] = field(default_factory=lambda: versions())

    @property
    def predicted(self) -> Totals:
        return _totals([(piece.name, piece.predicted) for piece in self.pieces])

    @property
    def measured(self) -> Totals | None:
        """None unless every piece has run."""
        sides = [(piece.name, piece.measured) for piece in self.pieces if piece.measured is not None]
        return _totals(sides) if sides and len(sides) == len(self.pieces) else None

    def to_dict(self) -> dict[str, Any]:
        totals = {"predicted": asdict(self.predicted), "measured": asdict(self.measured) if self.measured else None}
        return {"schema": SCHEMA, "version": VERSION, **asdict(self), "totals": totals}

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2)

    @classmethod
    def from_json(cls, text: str) -> Report:
        """The inverse of `to_json`; refuses a record of another schema or version."""
        record = json.loads(text)
        found = (record.get("schema"), record.get("version")) if isinstance(record, dict) else (None, None)
        if found != (SCHEMA, VERSION):
            raise InvalidInput(f"not a {SCHEMA} record of version {VERSION}: schema {found[0]!r}, version {found[1]!r}")
        pieces = tuple(_piece_from(piece) for piece in record["pieces"])
        return cls(record["name"], record["strategy"], record["budget_nbytes"], pieces, record["versions"])

    def __str__(self) -> str:
        from vdnn.report.text import as_text, report_view

        return as_text(report_view(self))


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


def _piece_from(record: Mapping[str, Any]) -> Piece:
    measured = record["measured"]
    return Piece(
        name=record["name"],
        predicted=TimelineSummary(**record["predicted"]),
        measured=None if measured is None else TimelineSummary(**measured),
        gradient_error=None if record.get("gradient_error") is None else GradientError(**record["gradient_error"]),
        density=None if record.get("density") is None else Density(**record["density"]),
        inexact=tuple(record.get("inexact", ())),
    )
