"""The order in which a step saves storages and asks for them again, and how far the next step keeps to it.

Enters: every storage that autograd saves (its size) and every one that it asks for (its ordinal: the how-manieth of its
step). Leaves: when a storage will be asked for next, as long as the step does what the one before it did. Eager code
may do something else at any moment; from then on nothing is known, and the caller falls back.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

NEVER = float("inf")


@dataclass(slots=True)
class Order:
    """One step: the bytes of each storage it saved, and the ordinals of those it asked for."""

    saved_nbytes: list[int] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not self.saved_nbytes


class Follower:
    """Writes down the order of this step and compares it with the `known` one."""

    def __init__(self, known: Order | None = None) -> None:
        self.order = Order()
        self.follows = known is not None and not known.is_empty
        self._known = known if known is not None else Order()
        self._uses: dict[int, list[int]] = {}

    def save(self, nbytes: int) -> int:
        """The ordinal of a storage that is saved now."""
        ordinal = len(self.order.saved_nbytes)
        self.order.saved_nbytes.append(nbytes)
        if self.follows:
            known = self._known.saved_nbytes
            self.follows = ordinal < len(known) and known[ordinal] == nbytes
        return ordinal

    def ask(self, ordinal: int) -> None:
        position = len(self.order.asked)
        self.order.asked.append(ordinal)
        if self.follows:
            known = self._known.asked
            self.follows = position < len(known) and known[position] == ordinal

    def next_use(self, ordinal: int) -> float:
        """How many requests from now the storage is asked for; NEVER when the known order does not ask for it."""
        now = len(self.order.asked)
        uses = self._known_uses().get(ordinal, [])
        at = bisect_left(uses, now)
        return uses[at] - now if at < len(uses) else NEVER

    def upcoming(self, after: int) -> Iterator[int]:
        """Ordinals in the order in which they will be asked for, as far as it is known; else backwards from `after`,
        for backward runs in reverse."""
        if self.follows:
            yield from self._known.asked[len(self.order.asked) :]
        else:
            yield from range(after - 1, -1, -1)

    def _known_uses(self) -> dict[int, list[int]]:
        if not self._uses:
            uses: dict[int, list[int]] = defaultdict(list)
            for position, ordinal in enumerate(self._known.asked):
                uses[ordinal].append(position)
            self._uses = dict(uses)
        return self._uses
