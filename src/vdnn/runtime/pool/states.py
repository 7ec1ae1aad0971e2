"""Where a storage is, and which changes of that are possible.

Enters: a state and the next one. Leaves: the next one, or an AssertionError: an impossible change is a bug of ours.
SuperNeurons (PPoPP 2018, section 3.3) has seven states; two of them (allocated without data, to be recomputed) belong
to a plan here, and what is held encoded (Gist, ISCA 2018) is added.

    HERE ⇄ ENCODED          encode, decode
    HERE, ENCODED → LEAVING send: a copy to a slower tier is on its way, the device still has the bytes
    LEAVING → HERE, ENCODED keep: somebody asked for it before it was gone; the copy is not wasted, see `Entry.send`
    LEAVING → AWAY          leave: the copy is there, the device's memory is free
    AWAY → COMING           fetch: memory is taken, a copy back is on its way
    COMING → HERE, ENCODED  arrive
    any → GONE              nobody will ask for it any more
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class State(Enum):
    HERE = "here"
    ENCODED = "encoded"
    LEAVING = "leaving"
    AWAY = "away"
    COMING = "coming"
    GONE = "gone"


ALLOWED: Mapping[State, frozenset[State]] = {
    State.HERE: frozenset({State.ENCODED, State.LEAVING, State.GONE}),
    State.ENCODED: frozenset({State.HERE, State.LEAVING, State.GONE}),
    State.LEAVING: frozenset({State.HERE, State.ENCODED, State.AWAY, State.GONE}),
    State.AWAY: frozenset({State.COMING, State.GONE}),
    State.COMING: frozenset({State.HERE, State.ENCODED, State.GONE}),
    State.GONE: frozenset(),
}

ON_DEVICE = frozenset({State.HERE, State.ENCODED, State.LEAVING, State.COMING})
"""States in which a storage takes memory of the device."""


def change(before: State, after: State) -> State:
    assert after in ALLOWED[before], (
        f"a storage that is {before.value} cannot become {after.value}: only"
        f" {', '.join(sorted(state.value for state in ALLOWED[before])) or 'nothing'}"
    )
    return after
