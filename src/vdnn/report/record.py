"""The report of a virtualized model as a record: a schema name, a version, JSON and back, and the text that shows it.

Enters: what `pieces.py` holds, for every captured piece what was predicted beside what was measured. Leaves: a frozen
`Report` and its JSON.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from vdnn.errors import InvalidFile
from vdnn.reading.bounded_json import RECORD_NBYTES, parsed
from vdnn.reading.fields import brief, of
from vdnn.report.pieces import ReportData
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
        """The inverse of `to_json`; refuses a record of another schema or version, and one with a field that holds
        something else, by its name."""
        record = parsed(text.encode("utf-8", "surrogatepass"), RECORD_NBYTES)
        found = (record.get("schema"), record.get("version")) if isinstance(record, dict) else (None, None)
        if found != (SCHEMA, VERSION):
            words = f"schema {brief(found[0])}, version {brief(found[1])}"
            raise InvalidFile(f"not a {SCHEMA} record of version {VERSION}: {words}", field="schema")
        derived = {"schema", "version", "totals"}
        report: Report = of(cls).read({name: part for name, part in record.items() if name not in derived}, "")
        return report

    def __str__(self) -> str:
        return as_text(report_view(self))
