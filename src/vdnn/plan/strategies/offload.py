"""offload: the smallest set of maps that meets the budget, away for as short as memory allows. Ours.

What vDNN (MICRO 2016) leaves on the table, and what is done here instead: no barrier after a layer, so a copy out has
until its bytes are wanted; no fixed prefetch window, so a copy back starts as soon as its bytes are free; no rule by
layer type, but any map between any two uses, in forward too; and no more maps than the budget asks for. Later systems
drop one or the other of these rules (vDNN++, Capuchin, Sony's out-of-core training).

    orders     gaps by what giving them up buys: bytes x time away, time to the next use, bytes. Copies that the link
               cannot hide within the gap come last, storages that nobody uses again first: they cost no copy.
    choice     per order: give up gaps at the worst moment until all moments fit (`offload_choice.py`)
    windows    lend free memory to copies under way (`offload_windows.py`)
    judge      simulate; of the plans that fit, the fastest
    exchange   while it stalls: do without one of its maps, and see whether others in its place stall less

It meets every budget from `bounds.minimum_budget` on, given room in the slower tiers. Convolutions get the fastest
algorithm that fits beside what their op cannot do without. Weakness: the choice looks at bytes and spans, not at the
queue of each link, so where links are the bottleneck another set of maps may stall less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from vdnn.plan.judge.clock import both_ways
from vdnn.plan.model.actions import Decision, Drop, Offload
from vdnn.plan.model.bounds import smallest_costs
from vdnn.plan.model.gaps import Gap, NbytesArray, gaps, moment_nbytes, without
from vdnn.plan.model.problem import Problem
from vdnn.plan.model.tier_room import TierRoom, slower_tiers
from vdnn.plan.plan import Plan
from vdnn.plan.shared.infeasible import bounds_of_tiers, infeasible
from vdnn.plan.shared.per_moment import largest_per_moment, replay_uses
from vdnn.plan.strategies.offload_choice import GapChoice, choose, exhaust, pruned
from vdnn.plan.strategies.offload_windows import CopyWindow, windows
from vdnn.plan.strategies.strategy import Strategy
from vdnn.units import format_seconds

MAX_EXCHANGE_OPS = 30_000  # simulated ops that the exchange may take: well under a second
MAX_JUDGED_OPS = 50_000  # beyond them the first plan that fits is the answer: a simulated op costs 20 us
NEGLIGIBLE_STALL_SHARE = 1e-3  # of the step time: stalls below it are not worth another plan
TIME_TOLERANCE = 1e-9  # relative: below what adding a million floats may lose

Score = Callable[[Gap, float], tuple[float, ...]]
"""The worth of giving up a gap of so many seconds; more is better."""

SCORES: tuple[Score, ...] = (
    lambda gap, away_s: (gap.nbytes * away_s, gap.nbytes * (gap.until - gap.leave)),
    lambda gap, away_s: (away_s, gap.until - gap.leave),
    lambda gap, away_s: (gap.nbytes, away_s),
)


def solve(problem: Problem) -> Plan:
    """The fastest plan found within the budget, or Infeasible with the smallest budget that works."""
    return beside(keeping(problem, "offload"))


def keeping(problem: Problem, strategy: str, fixed: tuple[Decision, ...] = ()) -> Plan:
    """The plan that moves nothing beside fixed decisions, with the fastest algorithms."""
    return Plan(problem, strategy, fixed, dict.fromkeys(problem.variants, 0))


def beside(kept: Plan) -> Plan:
    """The same when some decisions are made already, those of `kept`: storages they are about stay out of it."""
    problem = kept.problem
    if problem.budget_nbytes is None or kept.peak_nbytes <= problem.budget_nbytes:
        return kept
    search = _OffloadSearch(kept)
    best: Plan | None = None
    for tried, plan in enumerate(search.proposals(), start=1):
        best = plan if best is None else _faster(best, plan)
        if not _stalls(best) or tried * len(problem.graph) > MAX_JUDGED_OPS:
            return best
    if best is None:
        raise infeasible(
            search.emptiest, f"shrink the batch: everything that can be away already is{bounds_of_tiers(problem)}"
        )
    return search.exchanged(best)


def _faster(one: Plan, other: Plan) -> Plan:
    """Of equals, the first."""
    return other if other.step_time_s < one.step_time_s * (1 - TIME_TOLERANCE) else one


def _stalls(plan: Plan) -> bool:
    return plan.timeline.stall_s > NEGLIGIBLE_STALL_SHARE * plan.step_time_s


def _gap_keys(plan: Plan) -> list[tuple[int, int]]:
    """(storage, moment of the next use): which gap each copy of the plan goes through."""
    return [(d.storage, d.action.back) for d in plan.decisions if isinstance(d.action, Offload)]


def least_per_moment(kept: Plan) -> NbytesArray:
    """Device bytes of every moment beside a plan's decisions when everything else is away whenever it is unused."""
    search = _OffloadSearch(kept)
    return without(search.nbytes, search.gaps)


class _OffloadSearch:
    """What all proposals start from: gaps with their seconds, and the bytes of every moment when nothing more moves
    than the decisions of `kept` say."""

    def __init__(self, kept: Plan) -> None:
        problem, fixed = kept.problem, kept.decisions
        assert problem.budget_nbytes is not None, "without a budget there is nothing to propose"
        self.problem, self.budget_nbytes = problem, problem.budget_nbytes
        self.tiers = slower_tiers(problem.hardware)
        self.links = {tier: both_ways(problem.hardware, tier) for tier in self.tiers}
        self.fixed, settled = fixed, {decision.storage for decision in fixed}
        self.gaps = [
            gap
            for gap in gaps(problem.graph, replay_uses(kept))
            if (gap.is_last or self.tiers) and gap.storage not in settled
        ]
        self.variants = self._variants()
        # The plan itself where it can be: it knows its program and its timeline already.
        self.base = kept if self.variants == kept.variants else replace(kept, variants=self.variants)
        self.nbytes = largest_per_moment(self.base) if fixed else moment_nbytes(problem.graph, self.base.costs)
        self.elapsed_s = np.concatenate([[0.0], np.cumsum([cost.seconds for cost in self.base.costs.ops])])

    def proposals(self) -> Iterator[Plan]:
        """Plans within the budget, at most one per order; if no order finds one, the emptying sequence may."""
        found = False
        for score in SCORES:
            plan = self.proposal(self.order(score))
            if plan is not None:
                found = True
                yield plan
        if not found and self.is_bounded:
            chosen, fits = self.exhausted
            if fits:
                yield self.plan(pruned(chosen, self.nbytes, self.budget_nbytes))

    def proposal(self, order: Sequence[Gap]) -> Plan | None:
        chosen = choose(order, self.nbytes, self.budget_nbytes, self.room())
        return None if chosen is None else self.plan(self.settled(pruned(chosen, self.nbytes, self.budget_nbytes)))

    def exchanged(self, best: Plan) -> Plan:
        """Do without one map after the other, the largest first, as long as another set of maps stalls less."""
        order, trials = self.order(SCORES[0]), MAX_EXCHANGE_OPS // (len(self.problem.graph) + 1)
        shunned: set[tuple[int, int]] = set()
        untried = sorted(_gap_keys(best), key=lambda key: -self.problem.graph.storages[key[0]].nbytes)
        for _ in range(trials):
            if not untried or not _stalls(best):
                break
            without_it = shunned | {untried.pop(0)}
            plan = self.proposal([gap for gap in order if (gap.storage, gap.until) not in without_it])
            if plan is not None and _faster(best, plan) is plan:
                best, shunned = plan, without_it
        return best

    @cached_property
    def exhausted(self) -> tuple[list[GapChoice], bool]:
        return exhaust(self.order(SCORES[0]), self.nbytes, self.budget_nbytes, self.room())

    @property
    def emptiest(self) -> Plan:
        """The plan with everything away whenever it is unused, as far as the tiers have room: over the budget."""
        if self.is_bounded:
            chosen, fits = self.exhausted
            assert not fits, "a sequence that fits is a proposal"
        else:
            chosen = [GapChoice(gap, None if gap.is_last else self.tiers[0]) for gap in self.gaps]
        return self.written([CopyWindow(choice, choice.gap.leave, choice.gap.until) for choice in chosen])

    @property
    def is_bounded(self) -> bool:
        return all(self.problem.hardware.tier(name).nbytes is not None for name in self.tiers)

    def room(self) -> TierRoom:
        return TierRoom(self.problem.hardware, len(self.problem.graph))

    def order(self, score: Score) -> list[Gap]:
        return sorted(
            self.gaps, key=lambda gap: (gap.is_last, self.is_hidden(gap), score(gap, self.away_s(gap))), reverse=True
        )

    def away_s(self, gap: Gap) -> float:
        return float(self.elapsed_s[gap.until] - self.elapsed_s[gap.leave + 1])

    def is_hidden(self, gap: Gap) -> bool:
        """Could the nearest tier's links, with nothing else to do, copy it out and back within the gap?"""
        return not gap.is_last and sum(self.copies_s(gap, self.tiers[0])) <= self.away_s(gap)

    def copies_s(self, gap: Gap, tier: str) -> tuple[float, float]:
        """Seconds out and back, link after link."""
        out, back = self.links[tier]
        return sum(link.seconds(gap.nbytes) for link in out), sum(link.seconds(gap.nbytes) for link in back)

    def settled(self, chosen: Sequence[GapChoice]) -> Sequence[GapChoice]:
        """The nearest tiers for those that are back soonest: who stays away longest has time for a slow disk."""
        if len({choice.tier for choice in chosen if choice.tier}) < 2:
            return chosen
        room, tiers = self.room(), {}
        for k in sorted(range(len(chosen)), key=lambda k: self.away_s(chosen[k].gap)):
            gap = chosen[k].gap
            tiers[k] = None if gap.is_last else room.take(gap.nbytes, gap.final, gap.until)
            if tiers[k] is None and not gap.is_last:
                return chosen
        return [GapChoice(choice.gap, tiers[k]) for k, choice in enumerate(chosen)]

    def plan(self, chosen: Sequence[GapChoice]) -> Plan:
        away = without(self.nbytes, [choice.gap for choice in chosen])
        copied = [choice for choice in chosen if choice.tier is not None]
        dropped = [CopyWindow(choice, choice.gap.leave, choice.gap.until) for choice in chosen if choice.tier is None]
        return self.written([*windows(copied, away, self.budget_nbytes), *dropped])

    def written(self, used: Sequence[CopyWindow]) -> Plan:
        """Ordered by return: of copies back that start at one moment, the one that is used first goes first."""
        decisions = [self.decision(window) for window in sorted(used, key=lambda w: (w.choice.gap.until, w.leave))]
        return replace(self.base, decisions=(*self.fixed, *decisions))

    def decision(self, window: CopyWindow) -> Decision:
        gap, tier = window.choice.gap, window.choice.tier
        if tier is None:
            return Decision(gap.storage, Drop(window.leave), "nobody reads more than its shape from here on")
        out_s, back_s = self.copies_s(gap, tier)
        next_use = f"next use {format_seconds(self.away_s(gap))} away"
        reason = f"{next_use}, copies take {format_seconds(out_s)} out and {format_seconds(back_s)} back"
        return Decision(gap.storage, Offload(tier, window.leave, window.fetch, gap.until), reason)

    def _variants(self) -> dict[int, int]:
        """The fastest algorithm that fits beside what its op cannot do without; where tiers are bounded nobody knows
        yet what that is, and it is the one with the least workspace.
        """
        costs = smallest_costs(self.problem)
        needed: NbytesArray = without(moment_nbytes(self.problem.graph, costs), self.gaps)
        chosen: dict[int, int] = {}
        for moment, offered in self.problem.variants.items():
            least_nbytes = costs[moment].workspace_nbytes
            spare_nbytes = 0 if self.is_bounded else max(self.budget_nbytes - int(needed[moment]), 0)
            fitting = (k for k, cost in enumerate(offered) if cost.workspace_nbytes <= least_nbytes + spare_nbytes)
            fastest = next(fitting, None)
            if fastest is not None:  # else the cost table's own needs less than all that is offered
                chosen[moment] = fastest
        return chosen


STRATEGY = Strategy("offload", solve)
