"""The architectures that are known not to be equal. The list may only shrink.

Enters: rows of a run, and `exceptions.json`, architecture by architecture the way and why. Leaves: what a run shows
that the list does not say: one that fails and is not in it, and one that is in it and is equal now.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from zoo.ways import DIED, DIFFERS, EQUAL, REFUSED, Row

FILE = Path(__file__).with_name("exceptions.json")
FAILURES = (DIFFERS, REFUSED, DIED)


def known(file: Path = FILE) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = json.loads(file.read_text()) if file.exists() else {}
    return found


def surprises(rows: Iterable[Row], exceptions: dict[str, dict[str, str]] | None = None) -> list[str]:
    exceptions = known() if exceptions is None else exceptions
    found = []
    for row in rows:
        is_known = row.way in exceptions.get(row.architecture, {})
        if row.verdict in FAILURES and not is_known:
            found.append(f"{row.architecture}, {row.way}: {row.verdict}, and is no known exception: {row.cause}")
        if row.verdict == EQUAL and is_known:
            found.append(f"{row.architecture}, {row.way}: equal now; take it out of {FILE.name}")
    return found
