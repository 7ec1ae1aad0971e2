"""What backward really needs of every storage, and where zeros are to be expected: the analysis behind all codecs.

Enters: a graph. Leaves: one `Stash` per storage that crosses from forward to backward, with the stretch in which nobody
uses it, what its later readers take of it between them, and whether all of them can read an encoding. The one idea is
Gist's (ISCA 2018, section 3), made general: **what backward needs is information, not a tensor**. Gist looks for
pairs of layers, ReLU before a pool, ReLU before a convolution; here every reader has said what it takes, and the pairs
come out by themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from vdnn.ir import NO_USE, Graph, Information, Need, Op, Read, Trait
from vdnn.known_ops import known
from vdnn.known_ops.known_op import Zeros
from vdnn.plan.model.gaps import movable, uses
from vdnn.plan.model.layers import name_in_table

STATISTIC_RATIO = 8
"""A result this many times smaller than another of the same op stands beside it: the mean next to what was normalized.
It is no map, frees nothing, and rounding it would spoil much."""


@dataclass(frozen=True, slots=True)
class Stash:
    """A storage that is unused after moment `leave` and before moment `back`, in which `information` is used again.

    `back` is None when nobody takes more than its shape. `reads_encoded`: all later readers can read it encoded.
    `has_zeros`: many elements are expected to be zero. `is_map`: large enough beside its siblings to be what the op is
    for.
    """

    storage: int
    leave: int
    back: int | None
    information: Information
    reads_encoded: bool
    has_zeros: bool
    is_map: bool


def stashes(graph: Graph) -> tuple[Stash, ...]:
    """Every storage that forward leaves for backward and that a plan may move."""
    used, _ = uses(graph)
    readers = _later_readers(graph)
    zeros, maps = with_zeros(graph), with_maps(graph)
    stashed = set(graph.stashed)
    found: list[Stash] = []
    for storage in movable(graph):
        if storage not in stashed or graph.storages[storage].nbytes == 0:
            continue
        leave = max(moment for moment in used[storage] if moment < graph.num_forward)
        back = next((moment for moment in used[storage] if moment >= graph.num_forward), None)
        taken = [read for read in readers[storage] if read.need not in NO_USE]
        information = Information()
        for read in taken:
            information = information.joined(read.information)
        reads_encoded = bool(taken) and all(read.reads_encoded for read in taken)
        found.append(Stash(storage, leave, back, information, reads_encoded, storage in zeros, storage in maps))
    return tuple(found)


def stash_at(
    graph: Graph,
    storage: int,
    leave: int,
    until: int,
    reads: Mapping[int, Sequence[tuple[int, Read]]],
    zeros_and_maps: tuple[Set[int], Set[int]],
) -> Stash:
    """The same for any gap of a storage, wherever it lies in the step. `reads` are those of every storage with their
    moments; a write counts as one of everything.
    """
    taken = [r for moment, r in reads.get(storage, ()) if moment >= until and r.need not in NO_USE]
    information = Information()
    for read in taken:
        information = information.joined(read.information)
    zeros, maps = zeros_and_maps
    reads_encoded = bool(taken) and all(read.reads_encoded for read in taken)
    return Stash(storage, leave, until, information, reads_encoded, storage in zeros, storage in maps)


def _later_readers(graph: Graph) -> dict[int, list[Read]]:
    """Of each stashed storage: who reads it in backward. Writing counts as taking everything."""
    readers: dict[int, list[Read]] = {storage: [] for storage in graph.stashed}
    for op in graph.ops[graph.num_forward :]:
        for read in (*op.reads, *(Read(value) for value in op.writes if not op.has(Trait.VIEW))):
            if graph.values[read.value].storage in readers:
                readers[graph.values[read.value].storage].append(read)
    return readers


def with_zeros(graph: Graph) -> set[int]:
    """Storages that hold many zeros when forward is done with them: what was written last decides."""
    zeros: set[int] = set()
    for op in graph.ops[: graph.num_forward]:
        if op.has(Trait.VIEW):
            continue
        sparse = _writes_zeros(graph, op, zeros)
        for value in op.writes[:1]:  # a second result is an index or a statistic
            (zeros.add if sparse else zeros.discard)(graph.values[value].storage)
    return zeros


def _writes_zeros(graph: Graph, op: Op, zeros: set[int]) -> bool:
    zeros_of_op = known(_name(op).removesuffix("_")).zeros
    read = [graph.values[r.value].storage for r in op.reads if r.need is Need.ALL]
    if zeros_of_op is Zeros.MADE:
        return True
    if zeros_of_op is Zeros.WHERE_ALL_HAVE:
        return bool(read) and all(storage in zeros for storage in read)
    return zeros_of_op is Zeros.WHERE_ANY_HAS and any(storage in zeros for storage in read)


def _name(op: Op) -> str:
    return name_in_table(op) if op.target.count(".") > 1 else op.target


def with_maps(graph: Graph) -> set[int]:
    """Storages that hold a map when forward is done with them: what was written last decides."""
    maps: set[int] = set()
    for op in graph.ops[: graph.num_forward]:
        if not op.has(Trait.VIEW):
            maps.difference_update(graph.values[value].storage for value in op.writes)
            maps.update(_maps_of(graph, op))
    return maps


def _maps_of(graph: Graph, op: Op) -> Iterator[int]:
    if known(_name(op)).in_loss:  # the count of images that a mean divides by is among its results
        return
    written = [graph.values[value].storage for value in op.writes]
    largest = max((graph.storages[storage].nbytes for storage in written), default=0)
    yield from (storage for storage in written if graph.storages[storage].nbytes * STATISTIC_RATIO > largest)
