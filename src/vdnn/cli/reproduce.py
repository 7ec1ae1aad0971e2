"""`vdnn reproduce`: the papers' tables, our figures beside the published ones."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from string import ascii_lowercase
from typing import Annotated, Any, Literal

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table as RichTable
from rich.text import Text

from vdnn.cli.answer import Answer
from vdnn.cli.arguments import one_of
from vdnn.papers.paper_table import Certainty, PaperRow, Table
from vdnn.report.text import console

PAPERS = {
    "vdnn": "vDNN: Rhu et al., MICRO 2016",
    "superneurons": "SuperNeurons: Wang et al., PPoPP 2018",
    "gist": "Gist: Jain et al., ISCA 2018",
    "hybrid": "Hybrid parallelism: Pal et al., IEEE Micro 2019",
}

WIDE_COLUMNS = 100  # columns: what lets every table have room between its columns

SHORT_CERTAINTY = {
    Certainty.FOUND: "found",
    Certainty.SECOND_HAND: "second hand",
    Certainty.UNSURE: "unsure",
    Certainty.COMPUTED: "computed",
    Certainty.FITTED: "fitted",
    Certainty.UNKNOWN: "unknown",
}
"""For narrow terminals, with the whole words above the tables."""


Papers = Annotated[
    list[str] | None,
    typer.Argument(metavar="PAPER", parser=one_of(PAPERS), help=f"{', '.join(PAPERS)}. Default: all of them."),
]
Quick = Annotated[bool, typer.Option("--quick", help="Fewer and smaller networks: seconds instead of minutes.")]


def reproduce(papers: Papers = None, quick: Quick = False) -> Answer:
    """Compute the tables of the papers vdnn is built on, beside what they published, and say how sure that is.

    Every figure of ours comes from the planner and the simulator as the command runs; nothing is tuned to match.
    """
    found: list[tuple[str, tuple[Table, ...]]] = []
    began = time.monotonic()
    with console(stderr=True).status("Planning the papers' networks") as status:
        for paper in papers or PAPERS:
            status.update(f"{PAPERS[paper]}")
            found.append((paper, tuple(_tables(paper, quick))))
    record = {
        "schema": "vdnn.reproduce",
        "version": 1,
        "quick": quick,
        "seconds": time.monotonic() - began,
        "papers": [_record(paper, tables) for paper, tables in found],
    }
    return Answer(
        record, lambda width: Group(*(part for paper, tables in found for part in _view(paper, tables, width)))
    )


def _tables(paper: str, quick: bool) -> Iterator[Table]:
    """Of one paper; networks that are planned as they are in PyTorch are captured here, the rest is pure."""
    if paper == "vdnn":
        from vdnn.papers import vdnn_reproduced

        yield from vdnn_reproduced.tables(quick)
    elif paper == "superneurons":
        from vdnn.cli.captured_networks import problem_of
        from vdnn.papers import superneurons_reproduced

        yield from superneurons_reproduced.tables(problem_of, quick)
    elif paper == "gist":
        from vdnn.cli.captured_networks import problem_of, relu_densities
        from vdnn.papers import gist_reproduced

        yield from gist_reproduced.tables(problem_of, relu_densities, quick)
    else:
        from vdnn.papers import hybrid_reproduced

        yield from hybrid_reproduced.tables(quick)


def _record(paper: str, tables: Sequence[Table]) -> dict[str, Any]:
    return {"name": paper, "title": PAPERS[paper], "tables": [table.to_dict() for table in tables]}


def _view(paper: str, tables: Sequence[Table], width: int) -> Iterator[RenderableType]:
    yield Text(PAPERS[paper], style="bold underline")
    if width < WIDE_COLUMNS:
        yield Text(
            "; ".join(f"{short}: {certainty}" for certainty, short in SHORT_CERTAINTY.items() if short != certainty)
        )
    for table in tables:
        yield ""
        yield Text(table.title, style="bold")
        yield _grid(table, width)
        yield from (Text.from_markup(f"[dim]({letter})[/] {escape(why)}") for why, letter in _letters(table).items())
        yield from (Text(table.note, style="dim"),) if table.note else ()
    yield ""


def _grid(table: Table, width: int) -> RichTable:
    """A name is said once where it begins; letters lead to the reasons below."""
    is_wide = width >= WIDE_COLUMNS
    grid = RichTable(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1 if is_wide else 0, 0, 0))
    heads = (*table.what, *table.ours, *table.published, "how sure")
    lines = [_cells(row, is_wide, _letters(table)) for row in table.rows]
    widths = _widths([heads, *lines], width - (2 if is_wide else 1) * len(heads))
    num_names, num_ours = len(table.what), len(table.what) + len(table.ours)
    for position, head in enumerate(heads):
        justify: Literal["left", "right"] = "left" if position < num_names or position == len(heads) - 1 else "right"
        grid.add_column(head, justify=justify, style="" if position < num_ours else "cyan", width=widths[position])
    for line, before in zip(lines, [[""], *lines], strict=False):
        repeats = line[0] == before[0] and num_names > 1
        grid.add_row("" if repeats else line[0], *line[1:])
    return grid


def _widths(lines: Sequence[Sequence[str]], room: int) -> list[int]:
    """As wide as their texts; as long as that is too much, the widest that can break between words gives way."""
    columns = list(zip(*lines, strict=True))
    widths = [max(map(len, texts)) for texts in columns]
    least = [max((len(word) for text in texts for word in text.split()), default=1) for texts in columns]
    while sum(widths) > room and any(w > m for w, m in zip(widths, least, strict=True)):
        wrappable = [p for p, (w, m) in enumerate(zip(widths, least, strict=True)) if w > m]
        widths[max(wrappable, key=widths.__getitem__)] -= 1
    return widths


def _cells(row: PaperRow, is_wide: bool, letters: dict[str, str]) -> list[str]:
    sure = str(row.certainty) if is_wide else SHORT_CERTAINTY[row.certainty]
    reason = f" ({letters[row.why]})" if row.why else ""
    return [*row.what, *(figure.text for figure in (*row.ours, *row.published)), sure + reason]


def _letters(table: Table) -> dict[str, str]:
    """Each reason once, in order of appearance."""
    reasons = dict.fromkeys(row.why for row in table.rows if row.why)
    return dict(zip(reasons, ascii_lowercase, strict=False))
