"""What vDNN's static policies share: which maps leave, when they return, and which algorithms convolutions use.

Rhu et al., "vDNN: Virtualized Deep Neural Networks for Scalable, Memory-Efficient Neural Network Design", MICRO 2016,
section 3. A layer is a forward op that computes, its X the storage it takes.

Forward (section 3.2). X of an offloading layer is copied out while the layer runs, and released at the end of the
layer, which waits for the copy: `leave` is the last forward use. On branching graphs a map has several consumers and
the last one releases it, which is what the paper's Refcnt counts. In-place activations share their input's storage
here, as they do in the paper. The X of the last feature-extraction layer is about to be used and stays.

Backward (section 3.3, Figure 10). Every layer's backward starts at most one prefetch, of the layer that
`find_prefetch_layer` names, and the end of the layer waits for it: `back` is where the next layer's backward begins.
A map that no window reached in time is fetched on demand, right where it is used.

Beyond the paper: the nearest slower tier with room takes the copy, a map for which none has room stays, and a map of
which backward reads only the shape is released without a copy.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Container, Sequence
from dataclasses import dataclass

from vdnn.ir import Graph
from vdnn.known_ops.known_op import LayerKind
from vdnn.plan.model.actions import Decision, Drop, Offload
from vdnn.plan.model.gaps import movable, uses
from vdnn.plan.model.layers import Layer, layers
from vdnn.plan.model.problem import Problem
from vdnn.plan.model.tier_room import TierRoom
from vdnn.plan.plan import Plan

MEMORY_OPTIMAL, PERFORMANCE_OPTIMAL = "m", "p"

CONV_LAYERS = frozenset({LayerKind.CONV})
FEATURE_EXTRACTION_LAYERS = frozenset({LayerKind.CONV, LayerKind.POOL})

Windows = dict[int, tuple[int, int]]
"""Layer -> (moment before which its X is fetched, moment before which it is whole)."""


def static_plan(problem: Problem, strategy: str, offloading: frozenset[LayerKind], algorithms: str) -> Plan:
    """The published plan, whatever the budget."""
    return Plan(problem, strategy, decisions(problem, offloading), variants(problem, algorithms))


def variants(problem: Problem, algorithms: str) -> dict[int, int]:
    """For every convolution with a choice: the one with the least workspace (m), or the fastest (p)."""
    if algorithms == PERFORMANCE_OPTIMAL:
        return dict.fromkeys(problem.variants, 0)
    return {
        moment: min(range(len(offered)), key=lambda k: offered[k].workspace_nbytes)
        for moment, offered in problem.variants.items()
    }


def decisions(problem: Problem, offloading: frozenset[LayerKind]) -> tuple[Decision, ...]:
    """One decision per X of an offloading layer, in the order in which they leave."""
    network = layers(problem.graph)
    leaving = offloaded_maps(problem.graph, network, offloading)
    windows = prefetch_windows(network, leaving)
    room = TierRoom(problem.hardware, len(problem.graph))
    chosen = [_decision(problem, network, index, leaving[index], windows.get(index), room) for index in leaving]
    return tuple(decision for decision in chosen if decision is not None)


@dataclass(frozen=True, slots=True)
class Leaving:
    """A map that leaves: its last use in forward, its first in backward (None: backward reads its shape at most), and
    the moment that made it final.
    """

    storage: int
    leave: int
    needed: int | None
    final: int


def offloaded_maps(graph: Graph, network: Sequence[Layer], offloading: frozenset[LayerKind]) -> dict[int, Leaving]:
    """Layer -> the X it offloads: each map once, by the last offloading layer that takes it."""
    used, changed = uses(graph)
    may_move = set(movable(graph))
    last = max((k for k, layer in enumerate(network) if layer.kind in FEATURE_EXTRACTION_LAYERS), default=-1)
    owner = {layer.x: k for k, layer in enumerate(network) if layer.kind in offloading and layer.x in may_move}
    found: dict[int, Leaving] = {}
    for storage, index in sorted(owner.items(), key=lambda item: item[1]):
        if storage is None or index == last:
            continue
        leave = max(moment for moment in used[storage] if moment < graph.num_forward)
        needed = next((moment for moment in used[storage] if moment >= graph.num_forward), None)
        final = max(moment for moment in changed[storage] if moment <= leave)
        found[index] = Leaving(storage, leave, needed, final)
    return found


def prefetch_windows(network: Sequence[Layer], leaving: dict[int, Leaving]) -> Windows:
    """When each offloaded X is fetched: one prefetch per layer of the backward pass."""
    order = sorted((layer.backward, k) for k, layer in enumerate(network) if layer.backward is not None)
    stops = [k for k, layer in enumerate(network) if layer.kind is LayerKind.CONV or k in leaving]
    on_demand = deque(sorted((x.needed, k) for k, x in leaving.items() if x.needed is not None))
    prefetched = {k for k, x in leaving.items() if x.needed is None}  # nothing to fetch
    windows: Windows = {}
    for position, (moment, current) in enumerate(order):
        while on_demand and on_demand[0][0] <= moment:  # used by now, so it was fetched there at the latest
            prefetched.add(on_demand.popleft()[1])
        found = find_prefetch_layer(network, stops, leaving, prefetched, current)
        if found is not None:
            prefetched.add(found)
            windows[found] = (moment, order[position + 1][0] if position + 1 < len(order) else moment + 1)
    return windows


def find_prefetch_layer(
    network: Sequence[Layer],
    stops: Sequence[int],
    offloaded: Container[int],
    prefetched: Container[int],
    current: int,
) -> int | None:
    """The paper's Figure 10: the nearest preceding layer whose X is away, no further than the nearest convolution.

    `stops` are the layers at which the search can end, ascending: convolutions and those that offload.
    """
    for position in range(bisect_left(stops, current) - 1, -1, -1):
        index = stops[position]
        if index in offloaded and index not in prefetched:
            return index
        if network[index].kind is LayerKind.CONV:
            return None
    return None


def _decision(
    problem: Problem, network: Sequence[Layer], index: int, x: Leaving, window: tuple[int, int] | None, room: TierRoom
) -> Decision | None:
    ops = problem.graph.ops
    what = f"X of {network[index].kind} {ops[network[index].moment].name}"
    if x.needed is None:
        return Decision(x.storage, Drop(x.leave), f"{what}; backward reads its shape at most")
    fetch, back = (x.needed, x.needed) if window is None else (window[0], min(window[1], x.needed))
    tier = room.take(problem.graph.storages[x.storage].nbytes, x.final, back)
    if tier is None:
        return None
    how = "fetched on demand" if window is None else f"prefetched during {ops[fetch].name}"
    return Decision(x.storage, Offload(tier, x.leave, fetch, back), f"{what}; {how}")
