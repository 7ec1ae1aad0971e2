"""A paper's table beside ours: figures, how sure the published ones are, and why the two differ.

Enters: figures as they are computed, and published ones with their certainty. Leaves: frozen `Table`s that turn into
JSON or into text. The one idea: a published figure cannot be written down without saying how sure it is. What is
known at second hand is a line to compare with; what was fitted afterwards confirms nothing; what is not known stays
blank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from vdnn.units import MiB


class Certainty(StrEnum):
    """Where a published figure comes from."""

    FOUND = "found in a public source"  # an abstract, slides, notes, an open reimplementation
    SECOND_HAND = "second hand"  # not checked against the paper's own text
    UNSURE = "second hand, unsure"
    COMPUTED = "computed"  # from shapes or formulas: no figure of the paper's
    FITTED = "fitted afterwards"  # a formula or an input chosen so that the figure comes out
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Figure:
    """A number for programs, and the words a person reads. None: there is none."""

    value: float | bool | None
    text: str


BLANK = Figure(None, "")


def gigabytes(nbytes: float) -> Figure:
    """As vDNN counts: powers of ten."""
    return Figure(nbytes, f"{nbytes / 1e9:.2f} GB")


def mebibytes(nbytes: float) -> Figure:
    """As SuperNeurons counts: what its tables call MB are powers of two, to three places."""
    return Figure(nbytes, f"{nbytes / MiB:.3f} MiB")


def percent(share: float, *, places: int = 1, signed: bool = False) -> Figure:
    return Figure(share, f"{100 * share:{'+' if signed else ''}.{places}f} %")


def percents(shares: Sequence[float], *, places: int = 1) -> Figure:
    """From the least to the most; programs get the mean."""
    least, most = 100 * min(shares), 100 * max(shares)
    return Figure(sum(shares) / len(shares), f"{least:.{places}f}-{most:.{places}f} %")


def times(ratio: float) -> Figure:
    return Figure(ratio, f"{ratio:.2f} x")


def count(number: float) -> Figure:
    return Figure(number, f"{number:,.0f}")


def seconds(time_s: float) -> Figure:
    return Figure(time_s, f"{time_s:.3g} s" if time_s >= 1 else f"{1e3 * time_s:.3g} ms")


def yes_or_no(holds: bool) -> Figure:
    return Figure(holds, "yes" if holds else "no")


def said(text: str, value: float | bool | None = None) -> Figure:
    """A published figure in the paper's own precision."""
    return Figure(value, text)


@dataclass(frozen=True, slots=True)
class PaperRow:
    """One line: what it is about, our figures, the published ones, how sure those are, and why they differ.

    A row without any published figure has an unknown or computed certainty and nothing else.
    """

    what: tuple[str, ...]
    ours: tuple[Figure, ...]
    published: tuple[Figure, ...] = (BLANK,)
    certainty: Certainty = Certainty.UNKNOWN
    why: str = ""

    def __post_init__(self) -> None:
        is_blank = all(not figure.text for figure in self.published)
        if is_blank != (self.certainty is Certainty.UNKNOWN):
            raise ValueError(f"{self.what}: published {[f.text for f in self.published]} but {self.certainty}")


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under three groups of column heads. `note` says how our figures came about."""

    title: str
    what: tuple[str, ...]
    ours: tuple[str, ...]
    published: tuple[str, ...]
    rows: tuple[PaperRow, ...]
    note: str = ""

    def __post_init__(self) -> None:
        for heads in (self.what, self.ours, self.published):
            if len(set(heads)) != len(heads):
                raise ValueError(f"{self.title}: a head occurs twice among {heads}")
        for row in self.rows:
            lengths = len(row.what), len(row.ours), len(row.published)
            if lengths != (len(self.what), len(self.ours), len(self.published)):
                raise ValueError(f"{self.title}: row {row.what} does not fit the heads of the table")

    def to_dict(self) -> dict[str, Any]:
        return {"title": self.title, "note": self.note, "rows": [self._row(row) for row in self.rows]}

    def _row(self, row: PaperRow) -> dict[str, Any]:
        return {
            "what": dict(zip(self.what, row.what, strict=True)),
            "ours": _named(self.ours, row.ours),
            "published": _named(self.published, row.published),
            "certainty": str(row.certainty),
            "why": row.why,
        }


def _named(heads: Sequence[str], figures: Sequence[Figure]) -> Mapping[str, Mapping[str, Any]]:
    return {head: {"value": f.value, "text": f.text} for head, f in zip(heads, figures, strict=True)}
