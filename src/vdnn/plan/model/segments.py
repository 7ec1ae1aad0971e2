"""Segments: runs of cheap ops between checkpoints, which recomputation can do again. SuperNeurons (PPoPP 2018, 3.4).

Enters: a graph. Leaves: its segments in order, each with the storages that backward reads and those that are needed
only to make them again. The paper's rule: the outputs of convolutions, fully connected layers, joins, forks and
concatenations are checkpoints, everything else is recomputed from the nearest checkpoint. On graphs of ops a storage is
a checkpoint as soon as one of the ops that write it is: a ReLU that runs in place on a convolution's output belongs to
the convolution.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass
from math import prod

from vdnn.ir import Graph, Op, Role, Trait
from vdnn.known_ops import known
from vdnn.known_ops.known_op import Checkpoint
from vdnn.plan.model.gaps import uses
from vdnn.plan.model.layers import name_in_table
from vdnn.plan.model.replay import Replays
from vdnn.plan.model.stashes import Stash, stashes

_LAYERS_OF_PAPERS = frozenset({"conv", "fc", "join", "fork", "concat", "data", "softmax"})
"""Checkpoints of graphs that are written down layer by layer."""

CHECKPOINT_FLOPS_PER_ELEMENT = 16
"""Arithmetic per element of the result from which on an op that nobody has named is a checkpoint: an activation does a
few, attention and a recurrent cell hundreds."""


@dataclass(frozen=True, slots=True)
class Segment:
    """`stashed` members are read in backward, `passing` ones only by the replays of others; both by birth."""

    stashed: tuple[Stash, ...]
    passing: tuple[int, ...]

    @property
    def storages(self) -> tuple[int, ...]:
        return (*(stash.storage for stash in self.stashed), *self.passing)


def is_checkpoint(graph: Graph, op: Op) -> bool:
    name = name_in_table(op)
    if known(name).checkpoint is Checkpoint.ALWAYS or name in _LAYERS_OF_PAPERS:
        return True
    if known(name.removesuffix("_")).checkpoint is Checkpoint.OF_TWO_MAPS:
        maps = {graph.values[r.value].storage for r in op.reads}
        return sum(graph.storages[storage].role is Role.FEATURE_MAP for storage in maps) > 1
    elements = sum(prod(graph.values[value].shape) for value in op.writes)
    return op.flops > CHECKPOINT_FLOPS_PER_ELEMENT * max(elements, 1)


def segments(graph: Graph, checkpoints: Set[int] | None = None) -> tuple[Segment, ...]:
    """Every segment of which backward reads something, in order of its first op.

    `checkpoints` are the storages that are never made again; SuperNeurons' rule unless told.
    """
    replays = Replays(graph)
    heavy = _checkpointed(graph) if checkpoints is None else checkpoints
    wanted = {stash.storage: stash for stash in stashes(graph) if stash.back is not None}
    empty = {storage for storage in graph.stashed if graph.storages[storage].nbytes == 0}  # stays: nothing to gain
    there = wanted.keys() | replays.given | empty
    # A cheap storage can be made again if all it needs is a checkpoint, or cheap and can be made again itself.
    can: dict[int, bool] = {}
    for storage in sorted(replays.writers, key=lambda s: replays.writers[s][-1]):
        sources = None if storage in heavy or storage in empty else replays.sources(storage)
        can[storage] = sources is not None and all(can.get(s, False) or s in there for s in sources)
    cheap = [storage for storage in wanted if can[storage]]
    needed = _with_ancestors(cheap, replays, can)
    return tuple(_segment(group, wanted) for group in _connected(needed, replays))


def _checkpointed(graph: Graph) -> set[int]:
    heavy: set[int] = set()
    for op in graph.ops[: graph.num_forward]:
        if not op.has(Trait.VIEW) and is_checkpoint(graph, op):
            heavy.update(graph.values[value].storage for value in op.writes)
    return heavy


def _with_ancestors(cheap: list[int], replays: Replays, can: dict[int, bool]) -> set[int]:
    """The cheap storages, and those that must exist for a while to make them again."""
    needed, open_ = set(cheap), list(cheap)
    while open_:
        for source in replays.sources(open_.pop()) or ():
            if source not in needed and can.get(source, False):
                needed.add(source)
                open_.append(source)
    return needed


def _connected(needed: set[int], replays: Replays) -> list[list[int]]:
    """Groups of storages that are made from one another, or by one op: it should not run twice for its two results."""
    leader = {storage: storage for storage in needed}

    def find(storage: int) -> int:
        while leader[storage] != storage:
            leader[storage] = leader[leader[storage]]
            storage = leader[storage]
        return storage

    for storage in needed:
        for source in replays.sources(storage) or ():
            if source in needed:
                leader[find(storage)] = find(source)
    made: dict[int, int] = {}
    for storage in needed:
        for moment in replays.writers[storage]:
            leader[find(storage)] = find(made.setdefault(moment, storage))
    groups: dict[int, list[int]] = {}
    for storage in sorted(needed, key=lambda s: replays.writers[s][0]):
        groups.setdefault(find(storage), []).append(storage)
    return list(groups.values())


def _segment(group: list[int], wanted: dict[int, Stash]) -> Segment:
    return Segment(
        tuple(wanted[storage] for storage in group if storage in wanted),
        tuple(storage for storage in group if storage not in wanted),
    )


def last_uses(graph: Graph, storages: Iterable[int]) -> dict[int, int]:
    """Of each storage: its last use in forward, after which it may be dropped."""
    used, _ = uses(graph)
    return {s: max(moment for moment in used[s] if moment < graph.num_forward) for s in storages}
