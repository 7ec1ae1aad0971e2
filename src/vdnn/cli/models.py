"""`vdnn models`: the networks that have a name."""

from __future__ import annotations

import re
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.table import Table

from vdnn.cli.answer import Answer

NARROW_COLUMNS = 58  # what name, parameters, paper and gaps take of a line


def models() -> Answer:
    """List the networks that have a name, with their size and where they were published."""
    from vdnn.models import MODELS, names

    rows = [
        {
            "name": name,
            "title": MODELS[name].title,
            "num_parameters": MODELS[name].num_parameters,
            "source": MODELS[name].source,
        }
        for name in names()
    ]
    return Answer({"schema": "vdnn.models", "version": 1, "models": rows}, lambda width: _table(rows, width))


def _table(rows: list[dict[str, Any]], width: int) -> RenderableType:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("name", no_wrap=True)
    table.add_column("parameters", justify="right", no_wrap=True)
    table.add_column("published in", no_wrap=True)
    table.add_column("network", no_wrap=True, overflow="ellipsis", max_width=max(width - NARROW_COLUMNS, 10))
    for row in rows:
        table.add_row(str(row["name"]), _millions(row["num_parameters"]), _paper(str(row["source"])), str(row["title"]))
    return table


def _millions(count: int) -> str:
    """Enough to recognise a network by; the JSON has the exact number."""
    return f"{count / 1e6:,.1f} M"


def _paper(source: str) -> str:
    """Authors and year; the JSON has the whole source."""
    return re.split(r"(?<=\b\d{4})\b", source)[0]
