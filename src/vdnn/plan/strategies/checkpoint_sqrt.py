"""checkpoint-sqrt: forward in about sqrt(n) stretches, only what crosses from one to the next is kept. Chen, Xu, Zhang
and Guestrin, "Training Deep Nets with Sublinear Memory Cost", 2016, section 4.

The classic yardstick of recomputation. With n maps of equal size in k stretches, the kept ones are k and the ones that
exist again at a time are n / k: least together at k = sqrt(n), for one more forward pass.

    cut    where the maps since the last cut come to 1 / sqrt(n) of all bytes (the paper's algorithm 3 with that share
           as its budget), after the op that made the last of them
    keep   what is used in forward on both sides of a cut, what cannot be made again, and the last stretch, which
           backward needs first
    redo   all else of a stretch when backward first needs some of it, whatever its ops cost; each until its last use

Unlike `recompute-*` it looks at sizes and never at what an op costs, so convolutions run twice.
"""

from __future__ import annotations

from bisect import bisect_right
from math import sqrt

from vdnn.ir import Graph
from vdnn.plan.model.actions import Decision, Recompute
from vdnn.plan.model.gaps import uses
from vdnn.plan.model.problem import Problem
from vdnn.plan.model.replay import Replays
from vdnn.plan.model.segments import last_uses, segments
from vdnn.plan.model.stashes import stashes
from vdnn.plan.plan import Plan
from vdnn.plan.shared.infeasible import within_budget
from vdnn.plan.strategies.strategy import Strategy

_WAY_OUT = "choose 'offload' or 'superneurons', which move maps too"


def solve(problem: Problem) -> Plan:
    """The published plan, or Infeasible when its peak is over the budget."""
    return within_budget(Plan(problem, "checkpoint-sqrt", decisions(problem.graph)), _WAY_OUT)


def decisions(graph: Graph) -> tuple[Decision, ...]:
    """Every storage inside a stretch is dropped after its last forward use and made again with its neighbours."""
    found = segments(graph, crossing(graph, cuts(graph)))
    leave = last_uses(graph, (storage for segment in found for storage in segment.storages))
    decided: list[Decision] = []
    for segment in found:
        back = min(stash.back for stash in segment.stashed if stash.back is not None)
        reason = f"inside a stretch that is made again at op {back}"
        decided += [Decision(storage, Recompute(leave[storage], back), reason) for storage in segment.storages]
    return tuple(decided)


def cuts(graph: Graph) -> tuple[int, ...]:
    """The moments at which a stretch begins, but for the first, ascending."""
    final = Replays(graph).changed
    maps = sorted((final[stash.storage], stash.storage) for stash in stashes(graph) if stash.is_map)
    total_nbytes = sum(graph.storages[storage].nbytes for _, storage in maps)
    found: list[int] = []
    since_nbytes = 0
    for moment, storage in maps[:-1]:
        since_nbytes += graph.storages[storage].nbytes
        if since_nbytes * sqrt(len(maps)) >= total_nbytes:
            found.append(moment + 1)
            since_nbytes = 0
    return tuple(dict.fromkeys(found))


def crossing(graph: Graph, begins: tuple[int, ...]) -> set[int]:
    """Storages that forward uses in more than one stretch, or in the last."""
    used, _ = uses(graph)
    kept: set[int] = set()
    for storage, moments in used.items():
        stretches = {bisect_right(begins, moment) for moment in moments if moment < graph.num_forward}
        if len(stretches) != 1 or len(begins) in stretches:
            kept.add(storage)
    return kept


STRATEGY = Strategy("checkpoint-sqrt", solve)
