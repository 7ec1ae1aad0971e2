"""recompute-speed, recompute-memory, recompute-cost: drop what is cheap and make it again. Wang et al., "SuperNeurons:
Dynamic GPU Memory Management for Training Deep Neural Networks", PPoPP 2018, section 3.4.

Every storage of a segment (`plan/segments.py`) is dropped after its last use in forward.

    speed   the first backward step that needs any of a segment makes all of it again, and it stays until its last use:
            k replays for k layers, and all of the segment's maps at once
    memory  every backward step that needs some of a segment makes just those again, from the checkpoint; what the next
            such step needs too stays, the rest is dropped at once: k (k + 1) / 2 replays, and one layer's maps
    cost    speed where its memory is within l_peak, the largest need of any single step, and memory elsewhere: the peak
            of the second for nearly the replays of the first

    cost of speed = maps of the segment + what the backward step of its last layer needs     compared with l_peak
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

from vdnn.ir import PERSISTENT_ROLES, Graph, Need
from vdnn.plan.actions import Decision, Recompute
from vdnn.plan.plan import Plan
from vdnn.plan.problem import Problem
from vdnn.plan.replay import Replays
from vdnn.plan.segments import Segment, last_uses, segments
from vdnn.plan.strategies.vdnn_policy import within_budget

_NO_USE = frozenset({Need.NOTHING, Need.SHAPE})
_WAY_OUT = "choose 'superneurons', which also moves what is not recomputed"

Policy = Callable[[Problem, Segment, dict[int, int]], Iterator[Decision]]


def solve_speed(problem: Problem) -> Plan:
    return within_budget(Plan(problem, "recompute-speed", decisions(problem, speed_centric)), _WAY_OUT)


def solve_memory(problem: Problem) -> Plan:
    return within_budget(Plan(problem, "recompute-memory", decisions(problem, memory_centric)), _WAY_OUT)


def solve_cost(problem: Problem) -> Plan:
    return within_budget(Plan(problem, "recompute-cost", decisions(problem, cost_aware)), _WAY_OUT)


def decisions(problem: Problem, policy: Policy) -> tuple[Decision, ...]:
    """What a policy decides for every segment."""
    found = segments(problem.graph)
    leave = last_uses(problem.graph, (storage for segment in found for storage in segment.storages))
    return tuple(decision for segment in found for decision in policy(problem, segment, leave))


def speed_centric(problem: Problem, segment: Segment, leave: dict[int, int]) -> Iterator[Decision]:
    back = min(stash.back for stash in segment.stashed if stash.back is not None)
    for storage in segment.storages:
        yield Decision(storage, Recompute(leave[storage], back), f"its segment is made again at once, at step {back}")


def memory_centric(problem: Problem, segment: Segment, leave: dict[int, int]) -> Iterator[Decision]:
    """Step by step: what is there stays, what is missing is made again with what it is made from."""
    graph = problem.graph
    replays, wanted = Replays(graph), _wanted(graph, segment)
    away_since = {storage: leave[storage] for storage in segment.storages}
    there: set[int] = set()
    for step, next_step in pairwise([*sorted(wanted), -1]):
        for storage in _chain(wanted[step] - there, there, set(segment.storages), replays):
            yield Decision(storage, Recompute(away_since[storage], step), f"made again for step {step} alone")
            away_since[storage] = step
        there = (there | wanted[step]) & wanted.get(next_step, set())


def cost_aware(problem: Problem, segment: Segment, leave: dict[int, int]) -> Iterator[Decision]:
    policy = speed_centric if speed_nbytes(problem, segment) <= l_peak(problem) else memory_centric
    yield from policy(problem, segment, leave)


def speed_nbytes(problem: Problem, segment: Segment) -> int:
    """What a segment needs when it is made again at once."""
    graph = problem.graph
    maps = sum(graph.storages[storage].nbytes for storage in segment.storages)
    return maps + needed_nbytes(problem, _backward_of_last_layer(graph, segment))


def l_peak(problem: Problem) -> int:
    """The most that any single step needs, parameters and their like left out: no plan of whole ops goes below it."""
    return max((needed_nbytes(problem, step) for step in range(len(problem.graph))), default=0)


def needed_nbytes(problem: Problem, step: int) -> int:
    """What one step reads and writes, and its workspace."""
    graph, op = problem.graph, problem.graph.ops[step]
    touched = {graph.values[read.value].storage for read in op.reads if read.need not in _NO_USE}
    touched |= {graph.values[value].storage for value in op.writes}
    regulated = (graph.storages[storage] for storage in touched)
    maps = sum(storage.nbytes for storage in regulated if storage.role not in PERSISTENT_ROLES)
    return maps + problem.costs[step].workspace_nbytes


def _wanted(graph: Graph, segment: Segment) -> dict[int, set[int]]:
    """Backward step -> the members of the segment that it uses."""
    members = {stash.storage for stash in segment.stashed}
    wanted: dict[int, set[int]] = {}
    for step in range(graph.num_forward, len(graph)):
        for read in graph.ops[step].reads:
            if read.need not in _NO_USE and graph.values[read.value].storage in members:
                wanted.setdefault(step, set()).add(graph.values[read.value].storage)
    return wanted


def _chain(missing: set[int], there: set[int], members: set[int], replays: Replays) -> list[int]:
    """What has to be made again to have the missing ones: they, and what they are made from, as far as not there."""
    chain, open_ = set(missing), list(missing)
    while open_:
        for source in replays.sources(open_.pop()) or ():
            if source in members and source not in there and source not in chain:
                chain.add(source)
                open_.append(source)
    return sorted(chain, key=lambda storage: replays.writers[storage][0])


def _backward_of_last_layer(graph: Graph, segment: Segment) -> int:
    """The first backward step of the module that made the segment's last map; else the first that uses a member."""
    wanted = sorted(_wanted(graph, segment))
    last = max(segment.stashed, key=lambda stash: stash.leave).storage
    made_in = next(op.module for op in graph.ops if any(graph.values[value].storage == last for value in op.writes))
    return next((step for step in wanted if graph.ops[step].module == made_in), wanted[0])
