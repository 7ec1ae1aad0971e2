"""Who has to be on the device early, because something is made again from it.

Enters: candidates. Leaves: for every item the moments at which a recomputation of another asks for it before its own
next use. The one idea: asking is transitive. If what is asked for is itself recomputed, its own sources are asked for
at the same moment, and so on until something is there; the optimiser has to see the whole chain, or it would promise
memory that the replays then take.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from vdnn.plan.auto.candidates import RECOMPUTE, Candidates, GapOptions

MOST_PER_ITEM = 12
"""Demands that are looked at per item, those next to its own use first: the others would keep it there for so long that
giving it up is not worth it."""

DEEPEST = 8
"""Links of a chain that are looked at."""


@dataclass(frozen=True, slots=True)
class Demand:
    """`source` is wanted at `moment` when `asker` is recomputed there. `for_item` is whose recomputation began the
    chain: the asker itself at its own moment, or somebody who asked for the asker at that moment."""

    source: int
    moment: int
    asker: int
    for_item: int


def demands(candidates: Candidates, sources: dict[int, list[int]]) -> dict[int, list[Demand]]:
    """Of each item: who may ask for it, latest first. `sources` are those of `source_items`, all or some."""
    found: dict[int, list[Demand]] = {}
    for k in sources:
        for demand in _chain_of(k, candidates, sources):
            found.setdefault(demand.source, []).append(demand)
    return {k: sorted(asked, key=lambda d: -d.moment)[:MOST_PER_ITEM] for k, asked in found.items()}


def source_items(candidates: Candidates) -> dict[int, list[int]]:
    """Of each item that can be recomputed: the items of the storages it is made from."""
    by_storage: dict[int, list[int]] = {}
    for k, item in enumerate(candidates.items):
        by_storage.setdefault(item.gap.storage, []).append(k)
    return {
        k: [j for storage in sorted(candidates.kept_sources(item.gap)) for j in by_storage.get(storage, ())]
        for k, item in enumerate(candidates.items)
        if recompute_positions(item)
    }


def recompute_positions(item: GapOptions) -> tuple[int, ...]:
    """The choices that stand for recomputing an item; none: it cannot be."""
    return tuple(p for p, option in enumerate(item.options, start=1) if option.kind == RECOMPUTE)


def _chain_of(k: int, candidates: Candidates, sources: dict[int, list[int]]) -> Iterator[Demand]:
    moment = candidates.items[k].gap.until
    seen, asking = {k}, [k]
    for _ in range(DEEPEST):
        further: list[int] = []
        for asker in asking:
            for source in sources.get(asker, ()):
                gap = candidates.items[source].gap
                if gap.leave < moment < gap.until and source not in seen and len(seen) <= MOST_PER_ITEM:
                    seen.add(source)
                    further.append(source)
                    yield Demand(source, moment, asker, k)
        asking = further
