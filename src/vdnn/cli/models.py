"""`vdnn models`: the networks that have a name."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.table import Table

from vdnn.cli.answer import Answer
from vdnn.cli.options import Debug, Json


def models(as_json: Json = False, debug: Debug = False) -> Answer:
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
    return Answer({"schema": "vdnn.models", "version": 1, "models": rows}, lambda width: _table(rows))


def _table(rows: list[dict[str, object]]) -> RenderableType:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("name", no_wrap=True)
    table.add_column("parameters", justify="right", no_wrap=True)
    table.add_column("network")
    table.add_column("source", style="dim")
    for row in rows:
        table.add_row(str(row["name"]), f"{row['num_parameters']:,}", str(row["title"]), str(row["source"]))
    return table
