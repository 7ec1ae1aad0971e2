"""Where a storage could be away: the gaps between its uses.

Enters: a graph. Leaves: one `Gap` per stretch of moments in which a storage that a plan may move is not used, and the
bytes of every moment when nothing moves. The one idea: an op *uses* a storage when it writes a value of it or reads
more of it than its shape, so a storage that is read for its shape alone may be away meanwhile. With offloads only,
every instruction around a moment holds at most what its op does, so bytes per moment are bytes of the plan:
`moment_nbytes` minus what is away is what the simulator finds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from vdnn.cost.table import CostTable
from vdnn.ir import NO_USE, PERSISTENT_ROLES, Graph, Role, Trait
from vdnn.plan.model.timeline import NbytesArray


@dataclass(frozen=True, slots=True)
class Gap:
    """`storage` is unused after moment `leave` and before moment `until`, with at least one moment in between.

    `is_last`: nobody uses it from `until` on, which is then the end of its life: it need not come back. `final` is the
    last moment up to `leave` that changed its content: a copy out can start there.
    """

    storage: int
    nbytes: int
    leave: int
    until: int
    final: int
    is_last: bool = False

    def covers(self, moment: int) -> bool:
        return self.leave < moment < self.until


def gaps(graph: Graph, also_used: Mapping[int, Iterable[int]] | None = None) -> tuple[Gap, ...]:
    """Every gap of every movable storage that has bytes, ordered by storage, then by moment.

    `also_used`: further moments that use a storage, because something is replayed from it there.
    """
    used, changed = uses(graph)
    for storage, again in (also_used or {}).items():
        used[storage] = sorted({*used[storage], *again})
    found: list[Gap] = []
    for storage in movable(graph):
        moments, nbytes, life = used[storage], graph.storages[storage].nbytes, graph.lifetimes[storage]
        if nbytes == 0 or life is None or not moments:
            continue
        changes = set(changed[storage])
        final = moments[0]
        for leave, until in zip(moments, [*moments[1:], life.end], strict=True):
            final = leave if leave in changes else final
            if until - leave > 1:
                found.append(Gap(storage, nbytes, leave, until, final, is_last=leave == moments[-1]))
    return tuple(found)


def movable(graph: Graph) -> tuple[int, ...]:
    """Storages a plan may move: stashed ones and feature maps that the step itself makes and lets go."""
    fixed = {graph.values[value].storage for value in (*graph.inputs, *graph.tangents, *graph.held)}
    stashed = set(graph.stashed)
    return tuple(
        position
        for position, storage in enumerate(graph.storages)
        if position not in fixed
        and storage.role not in PERSISTENT_ROLES
        and (position in stashed or storage.role is Role.FEATURE_MAP)
    )


def uses(graph: Graph) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """Of each storage: the moments that use it, and those that change its content; both ascending, each moment once."""
    used: dict[int, list[int]] = defaultdict(list)
    changed: dict[int, list[int]] = defaultdict(list)
    storage_of = [value.storage for value in graph.values]
    for moment, op in enumerate(graph.ops):
        written = {storage_of[value] for value in op.writes}
        read = {storage_of[read.value] for read in op.reads if read.need not in NO_USE}
        for storage in written | read:
            used[storage].append(moment)
        if Trait.VIEW not in op.traits:
            for storage in written:
                changed[storage].append(moment)
    return used, changed


def moment_nbytes(graph: Graph, costs: CostTable) -> NbytesArray:
    """Device bytes of every moment when everything is kept: what is alive, and the op's workspace."""
    change = np.zeros(len(graph) + 1, dtype=np.int64)
    for storage, life in zip(graph.storages, graph.lifetimes, strict=True):
        if life is not None:
            change[life.begin] += storage.nbytes
            change[min(life.end, len(graph))] -= storage.nbytes
    workspace = np.array([cost.workspace_nbytes for cost in costs.ops], dtype=np.int64)
    return change.cumsum()[:-1] + workspace


def without(nbytes: NbytesArray, away: tuple[Gap, ...] | list[Gap]) -> NbytesArray:
    """Bytes of every moment when these gaps are used to the full."""
    change = np.zeros(len(nbytes) + 1, dtype=np.int64)
    for gap in away:
        change[gap.leave + 1] -= gap.nbytes
        change[gap.until] += gap.nbytes
    return nbytes + change.cumsum()[:-1]
