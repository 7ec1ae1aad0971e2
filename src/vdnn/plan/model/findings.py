"""What a run finds out that no plan can know: what rounding did to the gradients, and how dense sparse maps were.

Enters: measurements of the runtime. Leaves: frozen values for the report.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from vdnn.reading.fields import Maybe, Number, Text, read_as


@dataclass(frozen=True, slots=True)
class GradientError:
    """How far a lossy step's gradients are from the exact ones: |lossy - exact| / |exact| over all of them as one
    vector, and of the one that is furthest off; infinite where the exact ones are nothing. None where it was not
    measured, both of them; `note` says why."""

    relative: float | None = field(metadata=read_as(Maybe(Number(0, may_be_infinite=True))))
    worst: float | None = field(default=None, metadata=read_as(Maybe(Number(0, may_be_infinite=True))))
    worst_name: str = ""
    note: str = field(default="", metadata=read_as(Text(has_lines=True)))

    def __post_init__(self) -> None:
        if self.worst_name and (self.relative is None or self.worst is None):
            raise ValueError(f"{self.worst_name!r} is furthest off, and nothing says how far")


@dataclass(frozen=True, slots=True)
class Density:
    """What sparse encodings met: the share of non-zero elements they had room for, the densest map, and how many maps
    did not fit."""

    planned: float
    densest: float
    num_too_dense: int
