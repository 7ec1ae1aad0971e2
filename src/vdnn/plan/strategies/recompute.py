"""recompute-speed, recompute-memory, recompute-cost: drop what is cheap and make it again. Wang et al., "SuperNeurons:
Dynamic GPU Memory Management for Training Deep Neural Networks", PPoPP 2018, section 3.4.

Every storage of a segment (`plan/model/segments.py`) is dropped after its last use in forward.

    speed   the first backward op that needs any of a segment makes all of it again, and it stays until its last use:
            k replays for k layers, and all of the segment's maps at once
    memory  every backward op that needs some of a segment makes just those again, from the checkpoint; what the next
            such op needs too stays, the rest is dropped at once: k (k + 1) / 2 replays, and one layer's maps
    cost    speed where its memory is within l_peak, the largest need of any single op, and memory elsewhere: the peak
            of the second for nearly the replays of the first

    cost of speed = maps of the segment + what the backward op of its last layer needs     compared with l_peak
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from vdnn.ir import NO_USE, PERSISTENT_ROLES
from vdnn.plan.model.actions import Decision, Recompute
from vdnn.plan.model.gaps import uses
from vdnn.plan.model.problem import Problem
from vdnn.plan.model.replay import Replays
from vdnn.plan.model.segments import Segment, last_uses, segments
from vdnn.plan.plan import Plan
from vdnn.plan.shared.infeasible import within_budget
from vdnn.plan.strategies.strategy import Strategy

_WAY_OUT = "choose 'superneurons', which also moves what is not recomputed"

Policy = Callable[["SegmentUses", Segment], Iterator[Decision]]


def solve_speed(problem: Problem) -> Plan:
    return within_budget(Plan(problem, "recompute-speed", SegmentUses(problem).decisions(speed_centric)), _WAY_OUT)


def solve_memory(problem: Problem) -> Plan:
    return within_budget(Plan(problem, "recompute-memory", SegmentUses(problem).decisions(memory_centric)), _WAY_OUT)


def solve_cost(problem: Problem) -> Plan:
    return within_budget(Plan(problem, "recompute-cost", SegmentUses(problem).decisions(cost_aware)), _WAY_OUT)


@dataclass(frozen=True)
class SegmentUses:
    """What all policies look up: the segments of a graph, and who uses what when."""

    problem: Problem

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        return segments(self.problem.graph)

    @cached_property
    def replays(self) -> Replays:
        return Replays(self.problem.graph)

    @cached_property
    def leave(self) -> dict[int, int]:
        """Of each member of a segment: its last use in forward."""
        return last_uses(self.problem.graph, (storage for segment in self.segments for storage in segment.storages))

    @cached_property
    def uses(self) -> dict[int, list[int]]:
        """Of each storage: the backward ops that read more than its shape."""
        used, _ = uses(self.problem.graph)
        first = self.problem.graph.num_forward
        return {storage: [moment for moment in moments if moment >= first] for storage, moments in used.items()}

    @cached_property
    def l_peak(self) -> int:
        return l_peak(self.problem)

    def decisions(self, policy: Policy, chosen: Sequence[Segment] | None = None) -> tuple[Decision, ...]:
        """What a policy decides for every segment, or for those chosen."""
        return tuple(d for segment in (self.segments if chosen is None else chosen) for d in policy(self, segment))

    def wanted(self, segment: Segment) -> dict[int, set[int]]:
        """Backward op -> the members of the segment that it uses."""
        wanted: dict[int, set[int]] = {}
        for stash in segment.stashed:
            for moment in self.uses[stash.storage]:
                wanted.setdefault(moment, set()).add(stash.storage)
        return wanted

    def speed_nbytes(self, segment: Segment) -> int:
        """What a segment needs when it is made again at once."""
        maps = sum(self.problem.graph.storages[storage].nbytes for storage in segment.storages)
        return maps + needed_nbytes(self.problem, self._backward_of_last_layer(segment))

    def _backward_of_last_layer(self, segment: Segment) -> int:
        """The first backward op of the module that made the segment's last map; else the first that uses a member."""
        ops, wanted = self.problem.graph.ops, sorted(self.wanted(segment))
        last = max(segment.stashed, key=lambda stash: stash.leave).storage
        made_in = ops[self.replays.writers[last][0]].module
        return next((moment for moment in wanted if ops[moment].module == made_in), wanted[0])


def speed_centric(uses_of: SegmentUses, segment: Segment) -> Iterator[Decision]:
    back = min(stash.back for stash in segment.stashed if stash.back is not None)
    for storage in segment.storages:
        reason = f"its segment is made again at once, at op {back}"
        yield Decision(storage, Recompute(uses_of.leave[storage], back), reason)


def memory_centric(uses_of: SegmentUses, segment: Segment) -> Iterator[Decision]:
    """Op by op: what is there stays, what is missing is made again with what it is made from."""
    wanted, members = uses_of.wanted(segment), set(segment.storages)
    away_since = {storage: uses_of.leave[storage] for storage in members}
    there: set[int] = set()
    for moment, next_moment in pairwise([*sorted(wanted), -1]):
        missing = _chain(wanted[moment] - there, there, members, uses_of.replays)
        for storage in missing:
            yield Decision(storage, Recompute(away_since[storage], moment), f"made again for op {moment} alone")
        away_since |= dict.fromkeys((*missing, *wanted[moment]), moment)
        there = (there | wanted[moment]) & wanted.get(next_moment, set())


def cost_aware(uses_of: SegmentUses, segment: Segment) -> Iterator[Decision]:
    policy = speed_centric if uses_of.speed_nbytes(segment) <= uses_of.l_peak else memory_centric
    yield from policy(uses_of, segment)


def l_peak(problem: Problem) -> int:
    """The most that any single op needs, parameters and their like left out: no plan of whole ops goes below it."""
    return max((needed_nbytes(problem, moment) for moment in range(len(problem.graph))), default=0)


def needed_nbytes(problem: Problem, moment: int) -> int:
    """What one op reads and writes, and its workspace."""
    graph, op = problem.graph, problem.graph.ops[moment]
    touched = {graph.values[read.value].storage for read in op.reads if read.need not in NO_USE}
    touched |= {graph.values[value].storage for value in op.writes}
    regulated = (graph.storages[storage] for storage in touched)
    maps = sum(storage.nbytes for storage in regulated if storage.role not in PERSISTENT_ROLES)
    return maps + problem.costs[moment].workspace_nbytes


def _chain(missing: set[int], there: set[int], members: set[int], replays: Replays) -> list[int]:
    """What has to be made again to have the missing ones: they, and what they are made from, as far as not there."""
    chain, open_ = set(missing), list(missing)
    while open_:
        for source in replays.sources(open_.pop()) or ():
            if source in members and source not in there and source not in chain:
                chain.add(source)
                open_.append(source)
    return sorted(chain, key=lambda storage: replays.writers[storage][0])


STRATEGIES = (
    Strategy("recompute-speed", solve_speed),
    Strategy("recompute-memory", solve_memory),
    Strategy("recompute-cost", solve_cost),
)
