"""How one Budget is divided among the models that have it together.

Enters: what each member is known to take. Leaves: the bytes that each may have beside what is there all the time. The
one idea: **a byte is given out once at a time**. What is there all the time (parameters, buffers, gradients, optimizer
state) comes off first, that of all members. Members that are in flight together divide the rest: each has what it needs
at least, and what is then over goes by what more each would take with everything kept. Members that take turns are not
divided among at all: each has the rest.

Known weaknesses: a tensor that one member hands to another counts as an output of the one and an input of the other.
Members in flight together have parts of which each holds a whole step, though of one thread only one runs at a time and
the others wait with less.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Standing:
    """One member as it stands. `persistent` has the bytes that are there all the time, by what they are of: two members
    may have a parameter in common. The others are of its steps, beside those: what they take with everything kept
    (None: no step was planned yet), what a plan needs at least as far as that is known, what the plan that it has
    takes, and what they hold now."""

    name: str
    persistent: Mapping[int, int]
    kept_nbytes: int | None = None
    least_nbytes: int = 0
    planned_nbytes: int = 0
    held_nbytes: int = 0

    def __post_init__(self) -> None:
        of_steps = (self.kept_nbytes or 0, self.least_nbytes, self.planned_nbytes, self.held_nbytes)
        if min(*of_steps, *self.persistent.values()) < 0:
            raise ValueError(f"nothing takes negative bytes: {self}")

    @property
    def persistent_nbytes(self) -> int:
        return sum(self.persistent.values())

    @property
    def works_with_nbytes(self) -> int:
        """The least beside which it is known to have a plan."""
        return self.least_nbytes or self.planned_nbytes


def persistent_of(members: Iterable[Standing]) -> int:
    """What is there all the time of all members."""
    once: dict[int, int] = {}
    for member in members:
        once |= {key: max(nbytes, once.get(key, 0)) for key, nbytes in member.persistent.items()}
    return sum(once.values())


def left_nbytes(budget_nbytes: int, members: Iterable[Standing]) -> int:
    """For the steps of all members."""
    return budget_nbytes - persistent_of(members)


def divided(left_nbytes: int, together: Sequence[Standing]) -> tuple[int, ...]:
    """What each of the members that are in flight together may have of `left_nbytes`. Never more than that in sum;
    where not even the least fits, what the others' least leaves."""
    spare_nbytes = left_nbytes - sum(member.least_nbytes for member in together)
    if spare_nbytes < 0:
        return tuple(max(member.least_nbytes + spare_nbytes, 0) for member in together)
    more = [max((member.kept_nbytes or 0) - member.least_nbytes, 0) for member in together]
    if not any(more):
        more = [1] * len(together)
    return tuple(
        member.least_nbytes + spare_nbytes * each // sum(more) for member, each in zip(together, more, strict=True)
    )


def smallest_budget(members: Iterable[Standing], together: Sequence[Standing], asking: Standing) -> int:
    """The least Budget that is known to work for `asking`, which is one of those that are in flight together."""
    others = sum(member.works_with_nbytes for member in together if member is not asking)
    return persistent_of(members) + others + asking.least_nbytes
