"""What the whole process took beside what its tensors did, and the memory that the steps ran in.

Enters: figures of the kernel and of the steps' arena, as plain numbers. Leaves: frozen values for `pieces.py`, with
their words. The one idea: who names bytes is held to them by a system that counts pages, so the pages are told too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from vdnn.units import format_nbytes


@dataclass(frozen=True, slots=True)
class ArenaPart:
    """The arena of a model's steps; what is counted is of the last whole iteration.

    `peak_nbytes` is the most that lies in it at once: no arena is smaller. `outside` counts the blocks that had no
    planned place, `num_moves_refused` those whose pages the kernel would not move into place. On an accelerator blocks
    lie whole, and page faults say nothing of it.
    """

    nbytes: int
    peak_nbytes: int
    num_planned: int
    num_outside: int
    outside_nbytes: int
    num_moves_refused: int
    num_page_faults: int

    @property
    def waste(self) -> float:
        """The arena over the most that lies in it; 1 is the best there is."""
        return self.nbytes / self.peak_nbytes if self.peak_nbytes else 1.0


@dataclass(frozen=True, slots=True)
class RoomPart:
    """What a model without a budget is held to on its accelerator: what was free there for it, less a reserve. Plans
    are made within it where more `is_needed` than it surely has."""

    name: str
    nbytes: int
    usable_nbytes: int
    reserve_nbytes: int
    device_nbytes: int
    is_needed: bool = False

    @property
    def words(self) -> str:
        had = f"{format_nbytes(self.usable_nbytes)} of {format_nbytes(self.device_nbytes)}"
        reserve = f"{format_nbytes(self.reserve_nbytes)} in reserve"
        held = "steps are held to" if self.is_needed else "everything is kept, well within"
        return (
            f"No budget was named: {held} {format_nbytes(self.nbytes)}, which is what {self.name} had free for this"
            f" model ({had}) less {reserve}."
        )


@dataclass(frozen=True, slots=True)
class DevicePart:
    """The memory of the accelerator that computes, as its allocator counts it: at most allocated and at most reserved
    since an op was last tried there, and all that the device has."""

    name: str
    peak_allocated_nbytes: int
    peak_reserved_nbytes: int
    nbytes: int
    room: RoomPart | None = None
    ordinary_nbytes: int = 0
    """Of the host's memory behind it: what was to be page-locked, and could not be."""

    def rows(self) -> Iterable[tuple[str, str, str]]:
        """As those of a process."""
        ratio = self.peak_reserved_nbytes / max(self.peak_allocated_nbytes, 1)
        yield f"allocated on {self.name}, at most", format_nbytes(self.peak_allocated_nbytes), ""
        yield "reserved there, at most", format_nbytes(self.peak_reserved_nbytes), f"{ratio:.3f} x what was allocated"
        yield "memory of the device", format_nbytes(self.nbytes), ""

    def sentences(self) -> Iterable[str]:
        if self.room is not None:
            yield self.room.words
        if self.ordinary_nbytes:
            nbytes = format_nbytes(self.ordinary_nbytes)
            yield (
                f"{nbytes} of the host tier are ordinary memory, since the system refused to page-lock more: copies of"
                " it are slower and hold compute up."
            )


@dataclass(frozen=True, slots=True)
class ProcessPart:
    """Resident bytes of the process: when the model was virtualized (`before_nbytes`, and at most by then
    `peak_before_nbytes`), and at most so far. `missing` says why steps run without an arena; `returns_freed`, that
    malloc was told to return what is freed instead."""

    before_nbytes: int
    peak_before_nbytes: int
    peak_nbytes: int
    arena: ArenaPart | None = None
    missing: str = ""
    returns_freed: bool = False
    device: DevicePart | None = None

    @property
    def rise_nbytes(self) -> int:
        """How far the process rose above what it had when the model was virtualized."""
        return max(self.peak_nbytes - self.before_nbytes, 0)

    @property
    def rose(self) -> bool:
        """Whether the peak is of the time since then."""
        return self.peak_nbytes > self.peak_before_nbytes

    def rows(self) -> Iterable[tuple[str, str, str]]:
        """What is told, its figure, and what to make of it."""
        yield "peak of the process", format_nbytes(self.peak_nbytes), "" if self.rose else "from before this model"
        yield "when the model was virtualized", format_nbytes(self.before_nbytes), ""
        if self.rose:
            yield "rise", format_nbytes(self.rise_nbytes), ""
        if self.arena is not None:
            arena = self.arena
            yield "arena of the steps", format_nbytes(arena.nbytes), f"{arena.waste:.3f} x the most that lies in it"
            blocks = f"{arena.num_outside} of {arena.num_planned + arena.num_outside} blocks"
            yield "outside of it, per step", format_nbytes(arena.outside_nbytes), blocks
            if self.device is None:
                yield "page faults per step", f"{arena.num_page_faults}", ""
        if self.device is not None:
            yield from self.device.rows()

    def sentences(self) -> Iterable[str]:
        """What no figure says."""
        if self.missing:
            how = "; malloc returns what is freed" if self.returns_freed else ""
            yield f"Steps run without planned addresses: {self.missing}{how}."
        if self.device is not None:
            yield from self.device.sentences()
        if self.arena is not None and self.arena.num_moves_refused:
            yield f"The kernel refused to move the pages of {self.arena.num_moves_refused} blocks."
