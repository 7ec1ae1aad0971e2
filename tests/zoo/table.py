"""What a run of the zoo found, by cause: as text, as Markdown for the documentation, and as JSON."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from textwrap import shorten

from zoo.ways import DIED, DIFFERS, EQUAL, REFUSED, UNMADE, UNREPEATABLE, WAYS, Row

COUNTED = (EQUAL, DIFFERS, REFUSED, DIED)
"""What plain PyTorch trains repeatably, as it was made here."""

_NUMBERS = re.compile(r"\d[\d.,]*")


def as_json(rows: Sequence[Row], about: Mapping[str, str]) -> str:
    return json.dumps({"schema": "vdnn.zoo", "version": 1, **about, "rows": [asdict(row) for row in rows]}, indent=1)


def as_markdown(rows: Sequence[Row], about: Mapping[str, str]) -> str:
    return (
        "\n\n".join(
            part for part in (_heading(about), _totals(rows), *_by_cause(rows), _breaks(rows), _unmade(rows)) if part
        )
        + "\n"
    )


def _heading(about: Mapping[str, str]) -> str:
    words = ", ".join(f"{name} {value}" for name, value in about.items())
    return f"Tiny models with random weights, two steps each, against plain PyTorch bit for bit ({words})."


def _totals(rows: Iterable[Row]) -> str:
    by_way: dict[str, Counter[str]] = defaultdict(Counter)
    cached: Counter[str] = Counter()
    pieces: Counter[str] = Counter()
    for row in rows:
        by_way[row.way][row.verdict] += 1
        cached[row.way] += row.verdict == EQUAL and not row.num_pieces
        pieces[row.way] += row.verdict in (EQUAL, DIFFERS) and row.num_pieces > 1
    lines = [
        "| way | trained by plain PyTorch | equal | | differ | refused | died | in pieces | equal, nothing captured |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for way in WAYS:
        found = by_way[way]
        counted = sum(found[verdict] for verdict in COUNTED)
        share = f"{100 * found[EQUAL] / counted:.1f} %" if counted else ""
        cells = (
            way,
            counted,
            found[EQUAL],
            share,
            found[DIFFERS],
            found[REFUSED],
            found[DIED],
            pieces[way],
            cached[way],
        )
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def _by_cause(rows: Iterable[Row]) -> Iterable[str]:
    groups: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for row in rows:
        if row.verdict in (DIFFERS, REFUSED, DIED, UNREPEATABLE):
            groups[row.way, row.verdict, _kind(row.cause)].append(row)
        elif row.verdict == EQUAL and row.uncaptured:
            groups[row.way, "equal, but uncaptured", _kind(row.uncaptured)].append(row)
    for way in WAYS:
        lines = ["| | cause | architectures |", "| --- | --- | --- |"]
        of_way = [(key, group) for key, group in groups.items() if key[0] == way]
        for (_, verdict, cause), group in sorted(of_way, key=lambda item: (item[0][1], -len(item[1]))):
            lines.append(f"| {verdict} | {_cell(cause)} | {len(group)}: {', '.join(map(_name, group))} |")
        if len(lines) > 2:
            yield f"### {way}\n\n" + "\n".join(lines)


def _name(row: Row) -> str:
    return row.architecture + (f" ({row.relative:.0e})" if row.verdict == DIFFERS else "")


def _kind(cause: str) -> str:
    return shorten(_NUMBERS.sub("N", cause), 220, placeholder=" ...")


def _breaks(rows: Iterable[Row]) -> str:
    found: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        if row.way == "keep-all":
            for reason in row.breaks:
                found[_kind(reason)].append(row.architecture)
    if not found:
        return ""
    lines = ["### Why a model is captured in pieces", "", "| reason | architectures |", "| --- | --- |"]
    for reason, names in sorted(found.items(), key=lambda item: -len(item[1])):
        lines.append(f"| {_cell(reason)} | {len(names)}: {', '.join(names)} |")
    return "\n".join(lines)


def _unmade(rows: Iterable[Row]) -> str:
    found = {row.architecture: row.cause for row in rows if row.verdict == UNMADE and row.way == WAYS[0]}
    if not found:
        return ""
    lines = [
        f"### Not trained by plain PyTorch as they were made here: {len(found)}",
        "",
        "| architecture | why |",
        "| --- | --- |",
    ]
    lines += [f"| {name} | {_cell(cause[:200])} |" for name, cause in found.items()]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
