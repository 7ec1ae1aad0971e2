"""A plan whose trips to disk find their room: known, and set aside, before the first step.

Enters: the tiers of a model, and a function that plans a step. Leaves: a plan, and the disk tier's promise to hold what
it sends there. The one idea: the room is a part of the problem. What is free in the directory of the disk tier, what
the user allows, the process's limit for files, and what other models were promised bound the tier. A plan that takes
more of the disk than it counts (places begin at pages, and are held to the end of their step) is made again with as
much less.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace

from vdnn.compile.traced_step import PlannedStep
from vdnn.errors import Infeasible, TierFull
from vdnn.hardware.device import bounded
from vdnn.options import Options
from vdnn.plan.plan import Plan
from vdnn.runtime.journeys import trips_of
from vdnn.runtime.runtime import SharedTiers
from vdnn.runtime.tiers.disk import DiskStore, padded_nbytes
from vdnn.runtime.tiers.ledger import Promise

DISK = "disk"


class DiskRoom:
    """What one model was promised. Its plans take turns in the same room, as shapes do that alternate; beside a plan
    whose step is under way, as pieces of one model are, the next one gets room of its own."""

    def __init__(self, transfers: SharedTiers) -> None:
        self._transfers = transfers
        self._promises: list[Promise] = []

    def begin_again(self) -> None:
        """The plans are gone."""
        self._promises.clear()

    def end(self) -> None:
        """The model is gone, and what PyTorch still keeps of it needs no tiers. A backward that is to come has its own
        hold on them."""
        self.begin_again()
        self._transfers.let_go()

    @property
    def store(self) -> DiskStore | None:
        store = self._transfers().stores.get(DISK)
        return store if isinstance(store, DiskStore) else None

    def for_next_plan_nbytes(self) -> int | None:
        """What a new plan of this model could have, padding included; None where nothing bounds it."""
        store = self.store
        more = None if store is None else store.promisable_nbytes
        return None if store is None or more is None else more + self._padded_nbytes - self._under_way_nbytes(store)

    def set_aside(self, plan: Plan) -> None:
        """Have the disk hold what the plan sends there at once; `TierFull` when it cannot."""
        sizes = _sizes_on_disk(plan)
        store = self.store if sizes else None
        if store is None:
            return
        under_way = self._under_way_nbytes(store)
        nbytes = max(0, min(under_way, self._nbytes) + sum(sizes) - self._nbytes)
        padded = max(0, under_way + sum(map(padded_nbytes, sizes)) - self._padded_nbytes)
        if nbytes or padded:
            self._promises.append(store.promise_more(nbytes, padded))

    def _under_way_nbytes(self, store: DiskStore) -> int:
        """Of this model's steps, at most: what the store holds may be others' too."""
        return min(store.leased_nbytes, self._padded_nbytes)

    @property
    def _nbytes(self) -> int:
        return sum(promise.nbytes for promise in self._promises)

    @property
    def _padded_nbytes(self) -> int:
        return sum(promise.padded_nbytes for promise in self._promises)


def plan_in_room(plan_within: Callable[[Options], PlannedStep], options: Options, room: DiskRoom) -> PlannedStep:
    """What `plan_within` decides under these options, with a disk that is as large as it is."""
    if options.budget is None and options.plan is None and options.chosen_strategy == "keep-all":
        return plan_within(options)  # nothing leaves
    known = bound = room.for_next_plan_nbytes()
    while True:
        try:
            planned = plan_within(replace(options, hardware=bounded(options.machine, DISK, bound)))
        except Infeasible:
            found = _after_collecting(room)
            if known is None or found is None or found <= known:
                raise
            known = bound = found
            continue
        bound = _set_aside_or_less(planned.plan, room)
        if bound is None:
            return planned


def _set_aside_or_less(plan: Plan, room: DiskRoom) -> int | None:
    """None when the plan has its room; else a bound under which another may have it."""
    try:
        room.set_aside(plan)
    except TierFull:
        found, needed = _after_collecting(room), sum(map(padded_nbytes, _sizes_on_disk(plan)))
        if found is not None and needed > found:
            return max(0, int(plan.timeline.total(DISK).max(initial=0)) - (needed - found))
        room.set_aside(plan)  # there is room now, or the words why not
    return None


def _after_collecting(room: DiskRoom) -> int | None:
    """Models that are gone, and that nobody had collected yet, give their room back."""
    gc.collect()
    return room.for_next_plan_nbytes()


def _sizes_on_disk(plan: Plan) -> list[int]:
    return [trip.nbytes for trip in trips_of(plan).values() if trip.tier == DISK]
