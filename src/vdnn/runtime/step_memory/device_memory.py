"""The memory of a model's steps on an accelerator: one arena of whole blocks, planned before anything has run.

Enters: the halves of a model with their plans. Leaves: the memory they run in. What differs from the CPU's
(`step_memory.py`): nothing can be moved, so every block lies whole; what the caller gets is outside of the arena at all
times; and **the first iteration lies in the arena too**. A watched step says which instruction runs, and the plan says
what that instruction takes and where (`plan/addresses/step_arena.py`); what no plan knows (workspaces) takes holes.
What lay in its place stays there in later iterations, and the others are packed around it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

import torch

from vdnn.plan.addresses.layout import TimedBlock
from vdnn.plan.addresses.pack_whole import pack_whole
from vdnn.plan.addresses.step_arena import Guide, step_arena
from vdnn.plan.model.surroundings import ACCELERATOR_BLOCK_NBYTES, Surroundings
from vdnn.plan.plan import Plan
from vdnn.runtime.step_memory.allocator import Counts, Kind, LoggedBlock, Slots, StepAllocator
from vdnn.runtime.step_memory.planned_iteration import PlannedIteration, names_of, numbers
from vdnn.runtime.step_memory.step_memory import MemoryCounts, RunningHalf, StepMemory
from vdnn.torch_private import storage_id, without_torch_dispatch


class GuidedHalf(RunningHalf):
    """A half of an iteration that nobody has seen."""

    def __init__(self, allocator: StepAllocator, guides: Sequence[Guide]) -> None:
        super().__init__()
        self._allocator = allocator
        self._number = {(guide.begin, guide.storage): number for number, guide in enumerate(guides)}

    def at(self, position: int) -> None:
        self._allocator.at(position)

    def got(self, position: int, results: Sequence[tuple[int, torch.Tensor]]) -> None:
        """What lies elsewhere since a workspace of its size had its place moves there. One may wait for another."""
        planned = [(self._number.get((position, storage)), tensor) for storage, tensor in results]
        waiting = [(number, tensor.untyped_storage()) for number, tensor in planned if number is not None]
        for _ in range(len(waiting)):
            waiting = [(number, storage) for number, storage in waiting if not self._is_moved(number, storage)]

    def _is_moved(self, number: int, storage: torch.UntypedStorage) -> bool:
        if not self._allocator.wants_its_place(storage.data_ptr(), number):
            return False
        with torch.no_grad(), without_torch_dispatch():
            there = torch.empty(storage.nbytes(), dtype=torch.uint8, device=storage.device)
            there.copy_(torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage))
            self._allocator.exchange(storage_id(storage), storage_id(there.untyped_storage()))
        return True


class DeviceMemory(StepMemory):
    surroundings = Surroundings(in_arena=True)
    sees_outside = False  # an accelerator's autograd works on a thread of its own

    def __init__(self, allocator: StepAllocator) -> None:
        super().__init__(allocator)
        self._guessed_peak_nbytes = 0

    def _begin_iteration(self, key: Hashable, plan: Plan | None) -> None:
        super()._begin_iteration(key, plan)
        needed = [each.arena_nbytes for each in self._planned.values()]
        if not self._is_followed and plan is not None:
            guess = step_arena(plan)
            needed.append(guess.nbytes)
            self._guessed_peak_nbytes = guess.peak_nbytes
        if max(needed, default=0) != self._allocator.counts().arena_nbytes:
            self._allocator.reserve(max(needed, default=0))

    def _begin_unknown(self, plan: Plan | None) -> None:
        """It lies in the arena like any other."""

    def _begin_half(self, key: Hashable, plan: Plan | None) -> RunningHalf:
        half = super()._begin_half(key, plan)
        if self._is_followed or plan is None:
            return half
        guides = step_arena(plan).guides
        rows = [(guide.nbytes, guide.begin, guide.end, guide.offset, False) for guide in guides]
        self._allocator.guide(numbers(rows, 5))
        return GuidedHalf(self._allocator, guides)

    def _begin_between(self, key: Hashable) -> None:
        """What runs there takes memory of the device's allocator."""

    def _reserve(self, nbytes: int) -> None:
        """Each iteration looks whether the arena is as large as it needs."""

    def _plan(
        self,
        keys: tuple[Hashable, ...],
        log: Sequence[LoggedBlock],
        kept_before: frozenset[tuple[int, int]] = frozenset(),
        num_relearned: int = 0,
    ) -> PlannedIteration:
        arena_nbytes = self._allocator.counts().arena_nbytes
        return plan_whole_iteration(keys, log, kept_before, num_relearned, arena_nbytes=arena_nbytes)

    def _counted(self, counts: Counts) -> MemoryCounts:
        found = super()._counted(counts)
        return found if self._followed is not None else replace(found, arena_peak_nbytes=self._guessed_peak_nbytes)


def plan_whole_iteration(
    keys: tuple[Hashable, ...],
    log: Sequence[LoggedBlock],
    kept_before: frozenset[tuple[int, int]] = frozenset(),
    num_relearned: int = 0,
    *,
    arena_nbytes: int,
) -> PlannedIteration:
    """Places for all blocks of an iteration that was seen, in whole blocks. Those that lay where their plan says stay
    there, the others lie around them. What its caller got is kept outside."""
    log = [block for block in log if block.kind != Kind.GONE]
    names = names_of(log)
    kept = kept_before | {name for name, block in zip(names, log, strict=True) if block.is_held}
    end = 1 + max((max(block.begin, block.end) for block in log), default=0)
    inside = [block for name, block in zip(names, log, strict=True) if name not in kept]
    timed = [TimedBlock(block.nbytes, block.begin, end if block.end < 0 else block.end) for block in inside]
    there = [block.offset if block.kind == Kind.IN_PLACE else None for block in inside]
    layout = pack_whole(timed, ACCELERATOR_BLOCK_NBYTES, there=there, enough_nbytes=arena_nbytes)
    places = iter(layout.places)
    slots: list[list[tuple[int, ...]]] = [[] for _ in keys]
    extents: list[list[tuple[int, int]]] = [[] for _ in keys]
    for name, block in zip(names, log, strict=True):
        place = () if name in kept else next(places)
        kind = Kind.KEPT if name in kept else Kind.IN_PLACE
        slots[block.half].append((block.nbytes, kind, name in kept, len(extents[block.half]), len(place)))
        extents[block.half] += [(extent.begin, extent.nbytes) for extent in place]
    halves = tuple(Slots(numbers(s, 5), numbers(e, 2)) for s, e in zip(slots, extents, strict=True))
    return PlannedIteration(keys, halves, kept, layout.arena_nbytes, layout.peak_nbytes, num_relearned)
