"""The report of a virtualized model as a record: a schema name, a version, JSON and back, and the text that shows it.

Enters: what `pieces.py` holds, for every captured piece what was predicted beside what was measured. Leaves: a frozen
`Report` and its JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from vdnn.errors import InvalidInput
from vdnn.plan.model.findings import Density, GradientError
from vdnn.report.eager_part import EagerPart
from vdnn.report.pieces import Piece, ReportData, TimelineSummary
from vdnn.report.process_part import ArenaPart, ProcessPart
from vdnn.report.text import as_text, report_view

SCHEMA = "vdnn.report"
VERSION = 1


@dataclass(frozen=True, slots=True)
class Report(ReportData):
    """What the last training steps of a virtualized model did, next to what was planned for them."""

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
        eager = None if record.get("eager") is None else EagerPart(**record["eager"])
        return cls(
            record["name"],
            record["strategy"],
            record["budget_nbytes"],
            pieces,
            record["versions"],
            eager,
            _process_from(record.get("process")),
        )

    def __str__(self) -> str:
        return as_text(report_view(self))


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


def _process_from(record: Mapping[str, Any] | None) -> ProcessPart | None:
    if record is None:
        return None
    arena = record["arena"]
    return ProcessPart(**{**record, "arena": None if arena is None else ArenaPart(**arena)})
