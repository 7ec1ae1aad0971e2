"""Learn what a training iteration asks for, and run the next one at planned addresses.

Enters: the halves of a model as they run, each under a key. Leaves: the memory they run in, and `MemoryCounts` for the
report. The one idea: **an iteration is a sequence of halves, and each asks for the same blocks every time**. The first
one is recorded, with every large block in a mapping of its own, so that the process holds what is alive and nothing
more. From its log the blocks of the whole iteration get places in one arena (`plan/addresses/`): several pieces,
several microbatches in flight are one sequence, so they share it. Later iterations take these places; what differs is
served apart and counted, and the next iteration has learned it.

An iteration begins with a forward when nothing that a forward stashed is alive any more. What its caller still holds by
then (gradients that stay until after the forward, outputs in a variable) outlives iterations, so it is *kept*: it gets
memory of its own, outside of the arena.

What runs between a forward and the half after it is one more half of the sequence: a loss outside of the model, the
gradients of it that autograd makes. It takes pages out of the arena while the step has no use for them, instead of
lying beside pages that are idle. Its blocks are the caller's, so none has an address in the arena.

Inputs, parameters and what others allocate are never inside: only what is asked for between the begin of a forward and
the end of its backward.
"""

from __future__ import annotations

import resource
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from vdnn.plan.model.surroundings import ALONE
from vdnn.plan.plan import Plan
from vdnn.runtime.step_memory.allocator import NO_SLOTS, Counts, LoggedBlock, Slots, StepAllocator
from vdnn.runtime.step_memory.planned_iteration import Between, PlannedIteration, names_of, plan_iteration

MAX_LAYOUTS = 16
"""So many sequences of halves are remembered: a few shapes, with and without the odd last batch."""

MAX_RELEARNED = 8
"""So often the layout of a sequence is made again because blocks were not as expected. One that keeps changing is
followed as far as it goes."""

MAX_LOOKS = 16
"""Iterations until the one comes again, at the most, whose gradients lay in the way: the first of those that add up."""

MAX_HALVES = 2048
"""An iteration that is longer never ends (something holds on to what a forward stashed): it is not learned."""


@dataclass(frozen=True, slots=True)
class MemoryCounts:
    """What the memory of a model's steps looks like. `unexpected` counts the blocks of the last whole iteration that
    had no place in the arena, `num_page_faults` the faults of its halves."""

    arena_nbytes: int
    arena_peak_nbytes: int
    num_planned: int
    num_unexpected: int
    unexpected_nbytes: int
    num_moves_refused: int
    num_page_faults: int


class RunningHalf:
    """What a half tells of itself while it runs."""

    def __init__(self) -> None:
        self.held: list[int] = []

    def at(self, position: int) -> None:
        """This instruction of the half's plan runs now."""

    def got(self, position: int, results: Sequence[tuple[int, torch.Tensor]]) -> None:
        """These are its results, each with its storage in the graph."""

    def hold(self, tensors: Sequence[Any]) -> None:
        """The caller of the half gets these, and may keep them for as long as it likes."""
        self.held += [tensor.untyped_storage().data_ptr() for tensor in tensors if _has_memory(tensor)]


class UnplannedMemory:
    """Where the allocator cannot be wrapped: every block is malloc's. `missing` says why, `returns_freed` whether
    malloc was told to return what is freed."""

    def __init__(self, missing: str, *, returns_freed: bool = False) -> None:
        self.missing, self.returns_freed, self.outside_nbytes = missing, returns_freed, 0
        self.surroundings, self.sees_outside = ALONE, False

    @contextmanager
    def half(self, key: Hashable, *, is_forward: bool, plan: Plan | None = None) -> Iterator[RunningHalf]:
        yield RunningHalf()

    def counts(self) -> None:
        return None

    @property
    def arena_nbytes(self) -> int:
        return 0

    def make_room(self) -> None:
        """Nothing is idle here."""

    def forget(self, key: Hashable) -> None:
        """Nothing was learned here."""

    def forget_all(self) -> None:
        """Nothing was learned here."""


class StepMemory:
    """One per virtualized model. Halves of several threads may overlap; then nothing is learned of them."""

    surroundings = ALONE
    """What its arena means to an account."""

    sees_outside = True
    """Whether `outside_nbytes` is all that runs between halves."""

    def __init__(self, allocator: StepAllocator) -> None:
        self._allocator = allocator
        self._planned: dict[Hashable, PlannedIteration] = {}
        self._followed: PlannedIteration | None = None
        self._is_followed = False
        self._is_forgotten = False
        """Whether the iteration that runs, or ran last, comes no more."""

        self._num_looks = 0
        """At the end of so many iterations more it is asked what of them stays: one before found its places taken."""

        self._keys: list[Hashable] = []
        self._num_faults = 0
        self._is_between = False
        self.outside_nbytes = 0
        """The most that was taken between halves at once, up to the last half that began."""

        self.num_given_back = 0
        """How often idle memory went back to the system. The iteration after that faults its pages in again."""

        self._last: MemoryCounts | None = None
        self.missing, self.returns_freed = "", False

    @contextmanager
    def half(self, key: Hashable, *, is_forward: bool, plan: Plan | None = None) -> Iterator[RunningHalf]:
        """Run one half of `plan` inside. `key` says which: the same key asks for the same blocks."""
        if is_forward and self._allocator.counts().num_stashed == 0:
            self._begin_iteration(key, plan)
        self._end_between()
        half = self._begin_half(key, plan)
        faults = _num_page_faults()
        try:
            yield half
        finally:
            self._allocator.end_half(half.held)
            self._num_faults += _num_page_faults() - faults
            if is_forward:
                self._begin_between(key)

    @property
    def arena_nbytes(self) -> int:
        """What it keeps between steps at most."""
        return self._allocator.counts().arena_nbytes

    def make_room(self) -> None:
        """Between two iterations: give idle memory back, for work beside the step that has a step's room."""
        self.num_given_back += 1
        self._allocator.purge()

    def forget(self, key: Hashable) -> None:
        """Iterations that begin with this half come no more: the arena need not hold them."""
        self._planned.pop(key, None)
        self._is_forgotten |= key in self._keys[:1]

    def forget_all(self) -> None:
        """The same of all iterations so far: the model is captured again."""
        self._planned.clear()
        self._is_forgotten = True

    def _begin_half(self, key: Hashable, plan: Plan | None) -> RunningHalf:
        self._allocator.begin_half(self._slots_of(key))
        return RunningHalf()

    def _begin_between(self, key: Hashable) -> None:
        self._is_between = True
        self._allocator.begin_between(self._slots_of(Between(key)))

    def _end_between(self) -> None:
        if self._is_between:
            self._is_between = False
            self._allocator.end_between()
            self.outside_nbytes = self._allocator.counts().between_peak_nbytes

    def counts(self) -> MemoryCounts:
        """Of the last whole iteration, or of the one that runs if there was none."""
        return self._last or self._counted(self._allocator.counts())

    def _slots_of(self, key: Hashable) -> Slots:
        position = len(self._keys)
        self._keys.append(key)
        planned = self._followed
        if planned is None or not self._is_followed or position >= len(planned.keys) or planned.keys[position] != key:
            self._is_followed = False
            return NO_SLOTS
        return planned.slots[position]

    def _begin_iteration(self, key: Hashable, plan: Plan | None) -> None:
        if self._keys:
            self._end_iteration()
        self._allocator.begin_iteration()
        self._keys, self._num_faults, self._is_forgotten = [], 0, False
        self._followed = self._planned.get(key)
        self._is_followed = self._followed is not None
        if not self._is_followed:
            self._begin_unknown(plan)

    def _begin_unknown(self, plan: Plan | None) -> None:
        """It is recorded apart from the arena, whose pages would come on top."""
        self.make_room()

    def _end_iteration(self) -> None:
        """The iteration before is over: nothing that it stashed is alive."""
        counts = self._allocator.counts()
        self._last = self._counted(counts)
        was_as_planned = (
            self._is_followed and self._followed is not None and len(self._keys) == len(self._followed.keys)
        )
        keeps_more = was_as_planned and self._num_looks > 0 and self._has_more_to_keep()
        is_crowded = was_as_planned and counts.num_unexpected > 0
        self._num_looks = MAX_LOOKS if is_crowded else max(self._num_looks - 1, 0)
        is_known = was_as_planned and not is_crowded and not keeps_more
        is_skipped = self._is_followed and not was_as_planned  # its backward never came: the next one comes whole
        if is_known or is_skipped or self._is_forgotten or len(self._keys) > MAX_HALVES:
            return
        before = self._planned.get(self._keys[0])
        num_relearned = before.num_relearned + (not keeps_more) if was_as_planned and before is not None else 0
        if num_relearned <= MAX_RELEARNED:
            kept = before.kept if was_as_planned and before is not None else frozenset()
            self._learn(self._plan(tuple(self._keys), self._allocator.log(), kept, num_relearned))

    def _has_more_to_keep(self) -> bool:
        """Whether its caller still holds what was planned to be gone by now. Where gradients are added to those of the
        iteration before, the one that finds its places taken does not show by what: the one before it does, though all
        was as planned in it."""
        assert self._followed is not None, "it was as planned"
        log, kept = self._allocator.log(), self._followed.kept
        return any(
            block.is_held and block.end < 0 and name not in kept for name, block in zip(names_of(log), log, strict=True)
        )

    def _plan(
        self,
        keys: tuple[Hashable, ...],
        log: Sequence[LoggedBlock],
        kept_before: frozenset[tuple[int, int]] = frozenset(),
        num_relearned: int = 0,
    ) -> PlannedIteration:
        return plan_iteration(keys, log, kept_before, num_relearned)

    def _learn(self, planned: PlannedIteration) -> None:
        self._planned.pop(planned.keys[0], None)
        while len(self._planned) >= MAX_LAYOUTS:
            self._planned.pop(next(iter(self._planned)))
        self._planned[planned.keys[0]] = planned
        self._reserve(max(each.arena_nbytes for each in self._planned.values()))

    def _reserve(self, needed: int) -> None:
        if needed != self._allocator.counts().arena_nbytes and not self._allocator.reserve(needed):
            self.missing = f"the system refuses an arena of {needed} bytes (a limit on addresses, or strict overcommit)"
            self._planned.clear()

    def _counted(self, counts: Counts) -> MemoryCounts:
        followed = self._followed
        return MemoryCounts(
            arena_nbytes=counts.arena_nbytes,
            arena_peak_nbytes=0 if followed is None else followed.peak_nbytes,
            num_planned=counts.num_planned,
            num_unexpected=counts.num_unexpected,
            unexpected_nbytes=counts.unexpected_nbytes,
            num_moves_refused=counts.num_moves_refused,
            num_page_faults=self._num_faults,
        )


def _num_page_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def _has_memory(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type != "meta" and value.layout == torch.strided
