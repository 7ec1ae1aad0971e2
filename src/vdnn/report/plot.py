"""A curve of device bytes as a few lines of text.

Enters: a `Curve` of `memory_profile.py`. Leaves: lines that fit the width, readable without colour: each band has its
own shade, the phases are bracketed below the axis, the peak has a mark. Feature maps are drawn with eighth blocks, so
their edge is eight times finer than a line; the other bands round to half a line.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from vdnn.report.memory_profile import FEATURE_MAPS, PERSISTENT, TRANSIENT, Curve
from vdnn.units import format_nbytes

EIGHTHS = " ▁▂▃▄▅▆▇█"
SHADES = {PERSISTENT: "░", FEATURE_MAPS: "█", TRANSIENT: "▒"}
LEGEND = (
    f"{SHADES[PERSISTENT]} parameters, inputs   {SHADES[FEATURE_MAPS]} feature maps   "
    f"{SHADES[TRANSIENT]} gradients, workspaces"
)
GUTTER = 12  # "1023.99 MiB" and a space


def plot(curve: Curve, *, width: int = 80, height: int = 8) -> list[str]:
    """The lines of the plot, none longer than `width`."""
    columns = width - GUTTER - 1
    if not curve.num_columns or columns < 10:
        return []
    shown, backward_from = _fit(curve, columns)
    bands = {band: np.array(curve.bands[band], dtype=float)[shown] for band in SHADES}
    highest = max(float(sum(bands.values()).max()), 1.0)  # type: ignore[union-attr]
    cells = [_column(_edges(bands, at, height / highest), height) for at in range(len(shown))]
    rows = ["".join(column[row] for column in cells) for row in reversed(range(height))]
    body = [_axis(row, height, highest) + line for row, line in enumerate(rows)]
    return [*body, *_below(backward_from, len(shown), shown.index(curve.peak_column)), " " * (GUTTER + 1) + LEGEND]


def _fit(curve: Curve, columns: int) -> tuple[list[int], int]:
    """Which column of the curve each column of the plot shows: the highest it covers. Phases keep their border."""
    total = np.sum([curve.bands[band] for band in SHADES], axis=0)
    num, border = curve.num_columns, curve.backward_from
    left = round(columns * border / num)
    left = min(max(left, 1 if border else 0), columns - (1 if border < num else 0))
    shown = [*_resample(total, 0, border, left), *_resample(total, border, num, columns - left)]
    return shown, left


def _resample(total: np.ndarray, begin: int, end: int, columns: int) -> list[int]:
    if begin == end:
        return []
    edges = begin + np.arange(columns + 1) * (end - begin) // max(columns, 1)
    return [int(a) + int(total[a : max(b, a + 1)].argmax()) for a, b in pairwise(edges)]


def _edges(bands: dict[str, np.ndarray], at: int, lines_per_byte: float) -> list[tuple[str, float]]:
    """Upper edge of each band in lines, bottom band first."""
    edges: list[tuple[str, float]] = []
    top = 0.0
    for band, nbytes in bands.items():
        top += float(nbytes[at]) * lines_per_byte
        edges.append((band, top))
    return edges


def _column(edges: Sequence[tuple[str, float]], height: int) -> list[str]:
    return [_cell(edges, row) for row in range(height)]


def _cell(edges: Sequence[tuple[str, float]], row: int) -> str:
    """The character of one line: the band at the middle of what is filled; only feature maps have fine edges."""
    filled = min(edges[-1][1] - row, 1.0)
    if filled <= 1e-9:
        return " "
    middle = row + filled / 2
    band = next(band for band, edge in edges if middle <= edge)
    if band == FEATURE_MAPS:
        return EIGHTHS[max(1, round(8 * filled))]
    return SHADES[band] if filled >= 0.5 or row == 0 else " "


def _axis(row: int, height: int, highest: float) -> str:
    """Labels at the top and the middle of the axis."""
    labelled = {0: highest, height // 2: highest * (height - height // 2) / height}
    if row not in labelled:
        return " " * GUTTER + "│"
    return f"{format_nbytes(labelled[row]):>{GUTTER - 1}} ┤"


def _below(backward_from: int, columns: int, peak: int) -> list[str]:
    axis = f"{'0 B':>{GUTTER - 1}} └" + "─" * columns
    phases = _bracket("forward", backward_from) + _bracket("backward", columns - backward_from)
    mark = "▲ peak" if peak + 6 <= columns else "peak ▲"
    offset = peak if mark.startswith("▲") else peak - 5
    indent = " " * (GUTTER + 1)
    return [axis, indent + phases, indent + " " * offset + mark]


def _bracket(word: str, columns: int) -> str:
    """`├── forward ──┤` over exactly that many columns; a short phase keeps what fits."""
    if columns < 2:
        return "│" * columns
    inside = f" {word} " if columns >= len(word) + 4 else ""
    return "├" + inside.center(columns - 2, "─") + "┤"
