"""What it takes to make a storage again: the ops that write it, and what those read.

Enters: a graph. Leaves: for every storage that forward makes, whether it can be computed a second time, and from which
others. A storage can be made again if every op that writes it may run twice and if what those ops read still holds what
it held then: a source that a later op has overwritten in place is as good as gone, and what backward overwrites is not
made again at all. SuperNeurons (PPoPP 2018, section 3.4) asks this of layers, where the answer is always yes; graphs
with in-place ops have to look.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property

from vdnn.ir import NO_USE, PERSISTENT_ROLES, Graph, Trait

_NEVER_TWICE = frozenset({Trait.COLLECTIVE, Trait.MUST_KEEP})


@dataclass(frozen=True)
class Replays:
    """Replays of one graph, looked up storage by storage."""

    graph: Graph

    @cached_property
    def writers(self) -> dict[int, list[int]]:
        """Of each storage: the forward ops that write a value of it, ascending; views among them."""
        writers: defaultdict[int, list[int]] = defaultdict(list)
        for moment, op in enumerate(self.graph.ops[: self.graph.num_forward]):
            for storage in dict.fromkeys(self.graph.values[value].storage for value in op.writes):
                writers[storage].append(moment)
        return writers

    @cached_property
    def changed(self) -> dict[int, int]:
        """Of each storage: the last op that changes its content."""
        changed: dict[int, int] = {}
        for moment, op in enumerate(self.graph.ops):
            if not op.has(Trait.VIEW):
                changed |= {self.graph.values[value].storage: moment for value in op.writes}
        return changed

    @cached_property
    def given(self) -> frozenset[int]:
        """Storages that exist before the step or belong to the caller."""
        graph = self.graph
        return frozenset(graph.values[value].storage for value in (*graph.inputs, *graph.tangents, *graph.held))

    def sources(self, storage: int) -> frozenset[int] | None:
        """The storages from which this one can be made again, those that outlive the step left out; None: it cannot."""
        if storage not in self._sources:
            self._sources[storage] = self._find_sources(storage)
        return self._sources[storage]

    @cached_property
    def _sources(self) -> dict[int, frozenset[int] | None]:
        return {}

    def _find_sources(self, storage: int) -> frozenset[int] | None:
        graph = self.graph
        if storage in self.given or graph.storages[storage].role in PERSISTENT_ROLES or not self.writers.get(storage):
            return None
        if self.changed.get(storage, -1) >= graph.num_forward:  # backward writes over it
            return None
        found: set[int] = set()
        for moment in self.writers[storage]:
            if not self._may_run_twice(moment, storage):
                return None
            for read in graph.replayed(moment)[0]:
                source = graph.values[read.value].storage
                if source == storage or read.need in NO_USE:
                    continue
                if self.changed.get(source, -1) > moment:
                    return None
                if graph.storages[source].role not in PERSISTENT_ROLES:
                    found.add(source)
        return frozenset(found)

    def _may_run_twice(self, moment: int, storage: int) -> bool:
        """Running it changes nothing but `storage`: its other results are fresh and vanish again."""
        op = self.graph.ops[moment]
        if _NEVER_TWICE & op.traits:
            return False
        for value in self.graph.replayed(moment)[1]:
            other = self.graph.values[value].storage
            if other != storage and not self._is_fresh(other, moment) and not op.has(Trait.VIEW):
                return False
        return True

    def _is_fresh(self, storage: int, moment: int) -> bool:
        """Whether an op makes a storage anew. A replay then makes another one, even of what the caller holds."""
        return storage not in self._arriving and self.writers[storage][0] == moment

    @cached_property
    def _arriving(self) -> frozenset[int]:
        """Storages that come from outside."""
        return frozenset(self.graph.values[value].storage for value in (*self.graph.inputs, *self.graph.tangents))
