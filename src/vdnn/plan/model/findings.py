"""What a run finds out that no plan can know: what rounding did to the gradients, and how dense sparse maps were.

Enters: measurements of the runtime. Leaves: frozen values for the report.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GradientError:
    """How far a lossy step's gradients are from the exact ones: |lossy - exact| / |exact| over all of them as one
    vector, and of the one that is furthest off. None where it was not measured; `note` says why."""

    relative: float | None
    worst: float | None = None
    worst_name: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Density:
    """What sparse encodings met: the share of non-zero elements they had room for, the densest map, and how many maps
    did not fit."""

    planned: float
    densest: float
    num_too_dense: int
