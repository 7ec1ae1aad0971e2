"""Repeated blocks share their choices.

Enters: a ground. Leaves: units: groups of items that are decided together. Small networks have one item per unit. The
one idea: a thousand identical blocks need not be asked a thousand times, but neither should all give the same answer,
because those in front wait longest. So items that look alike are cut, in order, into a few runs of neighbours.
"""

from __future__ import annotations

from vdnn.plan.auto.candidates import Ground, Item

ASKED_ONE_BY_ONE = 500
"""Items up to which each is a unit of its own: an integer program of this size takes well under a second."""

ALL_ASKED = 60
NOTICED = 1e-4
"""Of the peak: smaller storages (means, counters) stay where they are, unless the budget is the smallest there is."""

RUNS = 12
"""Into how many runs the items of one look are cut."""

Unit = tuple[int, ...]


def units(ground: Ground) -> tuple[Unit, ...]:
    """Every item that matters once, in order of the first of each unit."""
    asked = _worth_asking(ground)
    if len(asked) <= ASKED_ONE_BY_ONE:
        return tuple((k,) for k in asked)
    alike: dict[object, list[int]] = {}
    for k in asked:
        item = ground.items[k]
        alike.setdefault(_look(ground, item), []).append(k)
    runs = [run for members in alike.values() for run in _cut(sorted(members, key=lambda k: ground.items[k].gap.leave))]
    return tuple(sorted(runs))


def _worth_asking(ground: Ground) -> list[int]:
    """All items of a small network; of a larger one those that a byte counter would notice."""
    if len(ground.items) <= ALL_ASKED:
        return list(range(len(ground.items)))
    least_nbytes = int(ground.base.max()) * NOTICED
    return [k for k, item in enumerate(ground.items) if item.gap.nbytes >= least_nbytes]


def _look(ground: Ground, item: Item) -> object:
    """What items must share to be decided together: size, how they are made and used, and what can be done."""
    ops, gap = ground.graph.ops, item.gap
    offered = tuple((option.kind, option.tier, option.held_nbytes) for option in item.options)
    return gap.nbytes, ops[gap.final].target, ops[gap.leave].target, ops[gap.until].target, offered


def _cut(members: list[int]) -> list[Unit]:
    length = -(-len(members) // RUNS)
    return [tuple(members[begin : begin + length]) for begin in range(0, len(members), length)]
