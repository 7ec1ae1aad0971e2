"""What a tensor cache did: counted while it runs, read as text."""

from __future__ import annotations

from dataclasses import dataclass

from vdnn.units import format_nbytes, format_seconds


@dataclass(slots=True)
class Findings:
    """Sums over all steps so far, and the largest peak of those that were watched. Requests in steps that do what a
    watched one did are not counted: nothing was away."""

    num_steps: int = 0
    num_watched: int = 0
    peak_nbytes: int = 0
    num_sent: int = 0
    sent_nbytes: int = 0
    num_fetched: int = 0
    fetched_nbytes: int = 0
    num_encoded: int = 0
    encoding_saved_nbytes: int = 0
    num_hits: int = 0
    num_prefetch_hits: int = 0
    num_misses: int = 0
    num_stalls: int = 0
    stall_s: float = 0.0

    @property
    def moved_nothing(self) -> bool:
        return self.num_sent == self.num_encoded == 0

    def text(self, budget_nbytes: int, policy: str) -> str:
        peak = format_nbytes(self.peak_nbytes) if self.num_watched else "not watched yet"
        return "\n".join(
            (
                f"tensor cache: budget {format_nbytes(budget_nbytes)}, policy {policy},"
                f" {self.num_steps} steps of which {self.num_watched} watched",
                f"peak       {peak}",
                f"moved out  {format_nbytes(self.sent_nbytes)} in {self.num_sent} storages",
                f"moved in   {format_nbytes(self.fetched_nbytes)} in {self.num_fetched} storages",
                f"encoded    {self.num_encoded} storages, {format_nbytes(self.encoding_saved_nbytes)} saved",
                f"asked for  {self.num_hits} were here, {self.num_prefetch_hits} prefetched in time,"
                f" {self.num_misses} not here",
                f"stalls     {self.num_stalls}, {format_seconds(self.stall_s)}",
            )
        )
