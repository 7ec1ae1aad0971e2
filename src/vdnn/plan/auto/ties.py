"""Repeated blocks share their choices.

Enters: candidates. Leaves: units: groups of items that are decided together. Small networks have one item per unit. The
one idea: a thousand identical blocks need not be asked a thousand times, but neither should all give the same answer,
because those in front wait longest. So items that look alike are cut, in order, into a few runs of neighbours.
"""

from __future__ import annotations

from vdnn.plan.auto.candidates import Candidates, GapOptions

MAX_SINGLE_UNITS = 500
"""Items up to which each is a unit of its own: an integer program of this size takes well under a second."""

ALL_ASKED = 60
NOTICED_PEAK_SHARE = 1e-4
"""Of the peak: smaller storages (means, counters) stay where they are, unless the budget is the smallest there is."""

RUNS = 12
"""Into how many runs the items of one look are cut."""

Unit = tuple[int, ...]


def units(candidates: Candidates) -> tuple[Unit, ...]:
    """Every item that matters once, in order of the first of each unit."""
    asked = _worth_asking(candidates)
    if len(asked) <= MAX_SINGLE_UNITS:
        return tuple((k,) for k in asked)
    alike: dict[object, list[int]] = {}
    for k in asked:
        item = candidates.items[k]
        alike.setdefault(_look(candidates, item), []).append(k)
    runs = [
        run for members in alike.values() for run in _cut(sorted(members, key=lambda k: candidates.items[k].gap.leave))
    ]
    return tuple(sorted(runs))


def _worth_asking(candidates: Candidates) -> list[int]:
    """All items of a small network; of a larger one those that a byte counter would notice."""
    if len(candidates.items) <= ALL_ASKED:
        return list(range(len(candidates.items)))
    least_nbytes = int(candidates.base.max()) * NOTICED_PEAK_SHARE
    return [k for k, item in enumerate(candidates.items) if item.gap.nbytes >= least_nbytes]


def _look(candidates: Candidates, item: GapOptions) -> object:
    """What items must share to be decided together: size, how they are made and used, and what can be done."""
    ops, gap = candidates.graph.ops, item.gap
    offered = tuple((option.kind, option.tier, option.held_nbytes) for option in item.options)
    return gap.nbytes, ops[gap.final].target, ops[gap.leave].target, ops[gap.until].target, offered


def _cut(members: list[int]) -> list[Unit]:
    length = -(-len(members) // RUNS)
    return [tuple(members[begin : begin + length]) for begin in range(0, len(members), length)]
