"""One number of bytes for several models: `vdnn.Budget`.

Enters: models, as they are virtualized with it, called and planned. Leaves: for each the bytes in which its next plan
is made, so that all that they have alive at once stays within the Budget (`plan/shared/division.py` has the rule).
The one idea: **who was seen in flight together divides, who takes turns does not**. A call that begins while a step of
another member waits for its backward joins the two for good; a member whose plan no longer fits its part is captured
again before its next step, as a step above its budget is (`compile/seen_storages.py`).

    virtualized   its parameters and gradients count from then on
    first plan    in what is really left then: less what others hold at that moment
    later plans   in its part by the rule
    gone          what it had is the others' again

All members are on one device. Copies in one process share the Budget. It is pickled by a name that only its own process
knows; elsewhere a Budget of the same bytes is made, once for all that come with the same name.

Threads may call members at once. There is one lock, held for sums only, never while a model is planned or runs; a
member that goes takes no lock, because a garbage collection may end it anywhere.
"""

from __future__ import annotations

import os
import threading
import uuid
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

from vdnn.errors import Infeasible, InvalidInput
from vdnn.plan.model.budget import parse_share
from vdnn.plan.shared.division import Standing, divided, left_nbytes, smallest_budget
from vdnn.units import Nbytes, format_nbytes, parse_budget

WORTH_A_PLAN = 1.05
"""How many times more a member that had to do with little must get before it is planned again for it."""

_BY_NAME: weakref.WeakValueDictionary[str, Budget] = weakref.WeakValueDictionary()


@dataclass(frozen=True, slots=True)
class Part:
    """What a member is planned in: `nbytes` for everything of its own, of which `room_nbytes` are for its steps.
    `is_for_now` says that others hold so much at this moment that it is less than the rule gives."""

    nbytes: Nbytes
    room_nbytes: int
    is_for_now: bool


class Budget:
    """Bytes that several virtualized models have together: `virtualize(generator, budget=budget)`, and the same for
    the discriminator. All that they have alive at once stays within them."""

    def __init__(self, nbytes: int | str) -> None:
        if isinstance(nbytes, str) and parse_share(nbytes) is not None:
            raise InvalidInput(
                f"a Budget is an amount of bytes, not {nbytes!r}: several models have it together, and of which of them"
                " would it be a share? Write an amount, as in '8GiB'."
            )
        self.nbytes = Nbytes(parse_budget(nbytes))
        if self.nbytes == 0:
            raise InvalidInput(f"a Budget of {nbytes!r} leaves no byte to train in: write an amount, as in '8GiB'.")
        self._name = uuid.uuid4().hex
        self.lock = threading.RLock()
        self._members: tuple[weakref.ref[Member], ...] = ()
        _BY_NAME[self._name] = self

    def __repr__(self) -> str:
        return f"Budget('{int(self.nbytes)}B')"

    def __str__(self) -> str:
        return f"a Budget of {format_nbytes(self.nbytes)}"

    def __copy__(self) -> Budget:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Budget:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _budget_named, (self._name, int(self.nbytes))

    def join(self, standing: Callable[[], Standing | None], memory: Memory, name: str, where: str) -> Member:
        """A model more, on the device of all others. `standing` says what it takes and holds; None once it is gone."""
        member = Member(self, standing, memory, where)
        with self.lock:
            for other, known in self.standings().items():
                if other.where != where:
                    raise InvalidInput(
                        f"{name} is on {where}, and {known.name}, which has {self} too, is on {other.where}: bytes of"
                        " two devices are not one sum. Make a Budget for each device."
                    )
            self._members = (*(ref for ref in self._members if ref() is not None), weakref.ref(member))
        return member

    def members(self) -> list[Member]:
        """Those that are there."""
        found = (ref() for ref in self._members)
        return [member for member in found if member is not None and not member.has_left]

    def standings(self) -> dict[Member, Standing]:
        known = {member: member.standing() for member in self.members()}
        return {member: standing for member, standing in known.items() if standing is not None}

    def begin_in_child(self) -> None:
        """After a fork the lock may be held by a thread that is gone."""
        self.lock = threading.RLock()


def _budget_named(name: str, nbytes: int) -> Budget:
    """Files name this function."""
    known = _BY_NAME.get(name)
    if known is None:
        known = Budget(Nbytes(nbytes))
        known._name = name
        _BY_NAME[name] = known
    return known


def _begin_in_child() -> None:
    for budget in list(_BY_NAME.values()):
        budget.begin_in_child()


os.register_at_fork(after_in_child=_begin_in_child)


class Memory(Protocol):
    """What a member's steps run in. It keeps pages between steps."""

    @property
    def arena_nbytes(self) -> int: ...

    def make_room(self) -> None: ...


class Member:
    """One model of a Budget, from when it is virtualized until it is gone."""

    def __init__(self, budget: Budget, standing: Callable[[], Standing | None], memory: Memory, where: str) -> None:
        self.budget, self._standing, self._memory, self.where = budget, standing, memory, where
        self.has_left = False
        self.outside_nbytes = 0
        """What it may take outside of the halves of a step: its room, where it runs as it is in a tensor cache."""

        self._together: object = object()  # the same for all that were in flight together
        self._num_calls = 0
        self._promised_nbytes = 0
        self._kept_nbytes: int | None = None
        self._least_nbytes = 0
        self._planned_in_nbytes: int | None = None

    def leave(self) -> None:
        """Its model is gone."""
        self.has_left = True

    def standing(self) -> Standing | None:
        """As the model says, with what was found while it was planned. A plan that is being made takes its room."""
        found = self._standing()
        if found is None:
            return None
        held_nbytes = max(found.held_nbytes, self._promised_nbytes if self._num_calls else 0)
        return replace(
            found,
            kept_nbytes=self._kept_nbytes,
            least_nbytes=self._least_nbytes,
            held_nbytes=held_nbytes,
        )

    @contextmanager
    def called(self) -> Iterator[None]:
        """While a call of the model runs. Whoever holds something of a step meanwhile is in flight together with it."""
        with self.budget.lock:
            self._num_calls += 1
            self._meet()
            idle = self._idle_in_the_way()
        for memory in idle:
            memory.make_room()
        try:
            yield
        finally:
            with self.budget.lock:
                self._num_calls -= 1

    def _meet(self) -> None:
        for other, standing in self.budget.standings().items():
            if other is not self and (standing.held_nbytes or other._num_calls):
                joined, ours = other._together, self._together
                for member in self.budget.members():
                    member._together = ours if member._together is joined else member._together

    def _idle_in_the_way(self) -> list[Memory]:
        """The memory of members between their steps, where the pages that it keeps are more than this one leaves."""
        standings = self.budget.standings()
        left, mine = left_nbytes(self.budget.nbytes, standings.values()), standings.get(self)
        needed = left if mine is None or self._planned_in_nbytes is None else mine.planned_nbytes
        others = [member for member in standings if member is not self and not member._num_calls]
        idle = [member._memory for member in others if not standings[member].held_nbytes]
        held_nbytes = sum(each.held_nbytes for member, each in standings.items() if member is not self)
        is_in_the_way = sum(memory.arena_nbytes for memory in idle) > left - needed - held_nbytes
        return idle if is_in_the_way else []

    def part(self, *, for_now: bool = True) -> Part:
        """What it is planned in: by the rule, and `for_now` not more than others leave at this moment."""
        with self.budget.lock:
            standings = self.budget.standings()
            mine = standings[self]
            left = left_nbytes(self.budget.nbytes, standings.values())
            others_nbytes = sum(each.held_nbytes for member, each in standings.items() if member is not self)
            room = by_rule = max(self._by_rule(standings), 0)
            if for_now:
                room = max(min(by_rule, left - others_nbytes), 0)
            self._promised_nbytes = room
            return Part(Nbytes(mine.persistent_nbytes + room), room, is_for_now=room < by_rule)

    def _by_rule(self, standings: dict[Member, Standing]) -> int:
        """A newcomer of which nothing is known has all that is left."""
        left = left_nbytes(self.budget.nbytes, standings.values())
        together = {member: each for member, each in standings.items() if member._together is self._together}
        if len(together) == 1 or (self._kept_nbytes is None and not self._least_nbytes):
            return left
        return divided(left, list(together.values()))[list(together).index(self)]

    def note_plan(self, part: Part, kept_nbytes: int, takes_nbytes: int) -> None:
        """It was planned in `part`: with everything kept it would take `kept_nbytes`, the plan takes `takes_nbytes`,
        both beside what is there all the time."""
        with self.budget.lock:
            self._kept_nbytes = max(self._kept_nbytes or 0, kept_nbytes)
            self._promised_nbytes = takes_nbytes
            before = self._planned_in_nbytes
            self._planned_in_nbytes = part.room_nbytes if before is None else min(before, part.room_nbytes)

    def forget_plans(self) -> None:
        self._planned_in_nbytes, self._promised_nbytes = None, 0

    def has_room_for(self, takes_nbytes: int) -> bool:
        """Whether a plan that takes so much is within its part."""
        with self.budget.lock:
            standings = self.budget.standings()
            return self not in standings or takes_nbytes <= self._by_rule(standings)

    def is_worth_another_plan(self) -> bool:
        """Whether its plans take more than its part by now, or were made in much less than it has by now."""
        with self.budget.lock:
            standings = self.budget.standings()
            room, mine = self._by_rule(standings), standings[self]
            if self._planned_in_nbytes is None:
                return False
            is_cut = mine.planned_nbytes > room
            was_short = (mine.kept_nbytes or 0) > self._planned_in_nbytes
            return is_cut or (was_short and room > WORTH_A_PLAN * self._planned_in_nbytes)

    def note_refusal(self, reason: Infeasible, own_nbytes: int | None = None) -> None:
        """No plan of it takes less than `reason` says; `own_nbytes` of that are there all the time, if it is not all
        that the member has."""
        with self.budget.lock:
            own_nbytes = self.budget.standings()[self].persistent_nbytes if own_nbytes is None else own_nbytes
            self._least_nbytes = max(self._least_nbytes, reason.minimum_nbytes - own_nbytes)

    def refusal(self, reason: Infeasible) -> Infeasible:
        """The same in the words of the Budget, with the smallest that is known to work."""
        with self.budget.lock:
            standings = self.budget.standings()
            mine = standings[self]
            together = [each for member, each in standings.items() if member._together is self._together]
            needed = max(smallest_budget(standings.values(), together, mine), self.budget.nbytes + 1)
            others = [each for member, each in standings.items() if member is not self and each.persistent_nbytes]
        lines = [
            f"{mine.name} has no plan in its part of {self.budget}, which it has together with"
            f" {len(standings) - 1} more:",
            *(f"    {_words(each, is_together=each in together)}" for each in others),
            f"Raise the Budget to at least {format_nbytes(needed)} ({needed} bytes), or shrink the batch. In its part:",
            str(reason),
        ]
        return Infeasible("\n".join(lines), minimum_nbytes=Nbytes(needed))


def _words(other: Standing, *, is_together: bool) -> str:
    persistent = format_nbytes(other.persistent_nbytes)
    words = f"{persistent:>12}  parameters, buffers, gradients and optimizer state of {other.name}"
    if not is_together:
        return words
    steps = format_nbytes(other.works_with_nbytes)
    return f"{words}\n    {steps:>12}  its steps, which are in flight together with these"
