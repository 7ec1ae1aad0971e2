"""Peak against step time as a picture: one small panel per network, in SVG, with nothing but this file.

Enters: points of every network. Leaves: the text of an SVG file. The one idea: a family is told by its shape, not by
colour alone; the points of a family whose budget was swept are joined by a line; thin lines mark plain eager PyTorch,
so that left of the upright one is less memory and below the level one is faster. A stroke through a mark spans the
middle half of its trials. A pale mark is not the same computation. Axes are linear and do not start at zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import floor, log10
from statistics import quantiles

from pareto_verdict import Point

from vdnn.units import GiB, MiB

COLUMNS = 4
PANEL_WIDTH, PANEL_HEIGHT = 330, 290
LEFT, RIGHT, TOP, BOTTOM = 60, 12, 30, 44  # from a panel's edges to its axes
MARGIN, HEADER, FOOTER = 12, 46, 34
MARK = 4.2  # half the size of a mark
LABEL = 9  # size of the letters beside a mark
LETTER = 5.4  # what one of them is wide, at most on average


@dataclass(frozen=True)
class Look:
    shape: str
    colour: str
    is_filled: bool = True
    line: str = ""
    """How the points of the family are joined: "" not at all, "solid", or a dash pattern."""


LOOKS = {
    "eager": Look("plus", "#000000"),
    "checkpoint": Look("square", "#777777"),
    "accumulation": Look("cross", "#777777"),
    "aot_eager": Look("triangle", "#b8860b", line="2 3"),
    "inductor": Look("diamond", "#b03030", line="2 3"),
    "vdnn exact": Look("circle", "#1f5fa8", line="solid"),
    "vdnn inexact": Look("circle", "#1f5fa8", is_filled=False, line="5 3"),
}
"""Colours of a lightness that also tells them apart in grey."""

NAMED = ("checkpoint", "accumulation")  # families whose members differ by more than a budget


@dataclass(frozen=True)
class Scale:
    """A linear map of values to places on the page, with round values to label."""

    low: float
    high: float
    begin: float
    end: float

    def __call__(self, value: float) -> float:
        return self.begin + (value - self.low) / (self.high - self.low) * (self.end - self.begin)

    def ticks(self, wanted: int = 4) -> list[float]:
        rough = (self.high - self.low) / wanted
        power = 10.0 ** floor(log10(rough))
        step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough)
        first = floor(self.low / step) + 1
        return [step * k for k in range(first, floor(self.high / step) + 1)]


def picture(panels: Mapping[str, Sequence[Point]], caption: str) -> str:
    """The whole page: a title per panel, the legend on top, the caption below."""
    rows = -(-len(panels) // COLUMNS)
    columns = min(COLUMNS, max(len(panels), 2))
    width = 2 * MARGIN + columns * PANEL_WIDTH
    height = HEADER + rows * PANEL_HEIGHT + FOOTER
    families = {point.family for points in panels.values() for point in points}
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
        ' font-family="Helvetica, Arial, sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        *legend([family for family in LOOKS if family in families]),
    ]
    for number, (title, points) in enumerate(panels.items()):
        x, y = MARGIN + number % columns * PANEL_WIDTH, HEADER + number // columns * PANEL_HEIGHT
        lines += [f'<g transform="translate({x} {y})">', *panel(title, points), "</g>"]
    lines += [text(MARGIN, height - 12, caption, fill="#555555"), "</svg>"]
    return "\n".join(lines) + "\n"


def legend(families: Sequence[str]) -> Iterator[str]:
    x = float(MARGIN + 6)
    for family in families:
        look = LOOKS[family]
        if look.line:
            yield joined([(x - 9, 20), (x + 9, 20)], look)
        yield mark(x, 20, look)
        yield text(x + 14, 24, family)
        x += 38 + 6.2 * len(family)


def panel(title: str, points: Sequence[Point]) -> Iterator[str]:
    unit, nbytes = ("GiB", GiB) if max(point.total_nbytes for point in points) >= GiB else ("MiB", MiB)
    x = padded([point.total_nbytes / nbytes for point in points], LEFT, PANEL_WIDTH - RIGHT)
    y = padded([seconds for point in points for seconds in spread(point)], PANEL_HEIGHT - BOTTOM, TOP)
    places = {point: (x(point.total_nbytes / nbytes), y(point.time_s)) for point in points}
    yield text(LEFT, TOP - 10, title, weight="bold")
    yield from axes(x, y, f"peak of a step, {unit}")
    yield from eager_lines(places)
    for family, look in LOOKS.items():
        yield from family_marks([(point, places[point]) for point in points if point.family == family], look, y)
    named = (point for point in points if point.family in NAMED)
    yield from labels({places[point]: short(point.name) for point in named}, list(places.values()))


def padded(values: Sequence[float], begin: float, end: float) -> Scale:
    low, high = min(values), max(values)
    pad = 0.07 * (high - low) or 0.1 * high or 1.0
    return Scale(low - pad, high + pad, begin, end)


def axes(x: Scale, y: Scale, words: str) -> Iterator[str]:
    for value in x.ticks():
        yield line(x(value), y.begin, x(value), y.begin + 4, "#555555")
        yield text(x(value), y.begin + 16, f"{value:g}", anchor="middle")
    for value in y.ticks():
        yield line(x.begin - 4, y(value), x.begin, y(value), "#555555")
        yield text(x.begin - 7, y(value) + 4, f"{value:g}", anchor="end")
    yield line(x.begin, y.begin, x.end, y.begin, "#555555")
    yield line(x.begin, y.begin, x.begin, y.end, "#555555")
    yield text((x.begin + x.end) / 2, y.begin + 32, words, anchor="middle", fill="#555555")
    middle = (y.begin + y.end) / 2
    turned = f' transform="rotate(-90 13 {middle:.1f})"'
    yield text(13, middle, "step time, s", anchor="middle", fill="#555555", more=turned)


def eager_lines(places: Mapping[Point, tuple[float, float]]) -> Iterator[str]:
    for point, (x, y) in places.items():
        if point.family == "eager":
            yield line(x, PANEL_HEIGHT - BOTTOM, x, TOP, "#dddddd")
            yield line(LEFT, y, PANEL_WIDTH - RIGHT, y, "#dddddd")


def family_marks(found: Sequence[tuple[Point, tuple[float, float]]], look: Look, scale: Scale) -> Iterator[str]:
    """The line in the order of the peaks, then the marks with their names to point at."""
    if look.line and len(found) > 1:
        yield joined(sorted(place for _, place in found), look)
    for point, (x, y) in found:
        low, high = spread(point)
        said = f"{point.name}: {point.total_nbytes / MiB:.0f} MiB, {point.time_s:.3f} s"
        yield line(x, scale(low), x, scale(high), look.colour)
        pale = "" if point.is_same_step else ' opacity="0.4"'
        yield f"<g{pale}><title>{escape(said)}</title>{mark(x, y, look)}</g>"


def spread(point: Point) -> tuple[float, float]:
    """The middle half of the trials."""
    if len(point.seconds) < 2:
        return point.time_s, point.time_s
    low, _, high = quantiles(point.seconds, n=4, method="inclusive")
    return low, high


def labels(names: Mapping[tuple[float, float], str], marks: Sequence[tuple[float, float]]) -> Iterator[str]:
    """Each beside its mark, in the first of four places that is free and inside the panel."""
    taken = [(x - MARK, x + MARK, y + MARK) for x, y in marks]  # left, right, baseline
    for (x, y), name in names.items():
        width = LETTER * len(name)
        places = [(x + dx, y + dy) for dx in (7, -7 - width) for dy in (-5, 12)]
        left, base = next((place for place in places if is_free(*place, width, taken)), places[0])
        taken.append((left, left + width, base))
        yield text(left, base, name, fill="#555555", size=LABEL)


def is_free(left: float, base: float, width: float, taken: Sequence[tuple[float, float, float]]) -> bool:
    overlaps = (left < end and begin < left + width and abs(base - other) < LABEL + 1 for begin, end, other in taken)
    return left > LEFT and left + width < PANEL_WIDTH and not any(overlaps)


def short(name: str) -> str:
    """ "checkpoint per block" as "per block", "accumulation in 2" as "in 2"."""
    return name.removeprefix("checkpoint ").removeprefix("accumulation ")


def mark(x: float, y: float, look: Look) -> str:
    r = MARK
    fill = look.colour if look.is_filled else "#ffffff"
    style = f'fill="{fill}" stroke="{look.colour}" stroke-width="1.4"'
    if look.shape == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{r}" {style}/>'
    if look.shape in ("plus", "cross"):
        turn = f' transform="rotate(45 {x:.1f} {y:.1f})"' if look.shape == "cross" else ""
        path = f"M{x - r - 1:.1f} {y:.1f}H{x + r + 1:.1f}M{x:.1f} {y - r - 1:.1f}V{y + r + 1:.1f}"
        return f'<path d="{path}" stroke="{look.colour}" stroke-width="2.2"{turn}/>'
    corners = {
        "square": ((-r, -r), (r, -r), (r, r), (-r, r)),
        "triangle": ((0, -r - 1), (r + 1, r), (-r - 1, r)),
        "diamond": ((0, -r - 1), (r + 1, 0), (0, r + 1), (-r - 1, 0)),
    }[look.shape]
    return f'<polygon points="{" ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners)}" {style}/>'


def joined(places: Sequence[tuple[float, float]], look: Look) -> str:
    dashes = "" if look.line == "solid" else f' stroke-dasharray="{look.line}"'
    along = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    return f'<polyline points="{along}" fill="none" stroke="{look.colour}" stroke-width="1"{dashes}/>'


def line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def text(
    x: float,
    y: float,
    words: str,
    *,
    anchor: str = "start",
    fill: str = "#000000",
    weight: str = "normal",
    size: int = 11,
    more: str = "",
) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}" font-weight="{weight}" font-size="{size}"'
    return f"<text {place}{more}>{escape(words)}</text>"
