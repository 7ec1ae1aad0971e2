"""What a report says of what ran in a tensor cache: a model that could not be captured, or shapes that came first."""

from __future__ import annotations

from dataclasses import dataclass, field

from vdnn.reading.fields import Text, read_as
from vdnn.units import format_nbytes, format_seconds


@dataclass(frozen=True, slots=True)
class EagerPart:
    """`everything_nbytes` is what a `budget` that is a share is one of: the first step's peak with everything kept.
    None: the budget was given in bytes. `is_for_new_shapes`: other shapes were captured."""

    name: str
    reason: str = field(metadata=read_as(Text(has_lines=True)))
    is_for_new_shapes: bool
    budget: str
    budget_nbytes: int
    everything_nbytes: int | None
    peak_nbytes: int
    num_steps: int
    sent_nbytes: int
    fetched_nbytes: int
    num_encoded: int
    stall_s: float

    def sentences(self) -> list[str]:
        of = ""
        if self.everything_nbytes is not None:
            whole = format_nbytes(self.everything_nbytes)
            of = f", {self.budget} of the {whole} that its first step takes with everything kept"
        what = "met new shapes and ran them" if self.is_for_new_shapes else "could not be captured and ran"
        return [
            f"{self.name} {what} as it is, in a tensor cache within {format_nbytes(self.budget_nbytes)}{of}.",
            f"Why: {self.reason}",
            f"Measured peak {format_nbytes(self.peak_nbytes)} in {self.num_steps} steps;"
            f" {format_nbytes(self.sent_nbytes)} left the device, {format_nbytes(self.fetched_nbytes)} came back,"
            f" {self.num_encoded} storages were encoded, {format_seconds(self.stall_s)} were spent waiting.",
        ]
