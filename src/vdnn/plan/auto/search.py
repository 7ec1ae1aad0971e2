"""Choose, compose, simulate, learn; again.

Enters: a problem with a budget. Leaves: the fastest plan found that fits, with a bound, or Infeasible with the smallest
budget that works. The one idea: the integer program proposes, the simulator judges, and where the two differ the
program is told. What no plan can do better says `bound.py`, which knows nothing of either.

Whatever is found is found for a *rung*: budgets are rounded down to one of a few dozen values between the smallest
budget that works and the peak of keeping everything. A larger budget looks at its own rung and at those below, so on
graphs that are small enough to look at all of them it never gets a slower plan; two budgets on one rung get the same.
On problems so small that all choices can be tried, they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from itertools import product
from math import prod

import numpy as np

from vdnn.errors import Infeasible
from vdnn.plan.auto.bound import Bound
from vdnn.plan.auto.candidates import ENCODE, ENCODE_OFFLOAD, OFFLOAD, RECOMPUTE, Candidates
from vdnn.plan.auto.compose import KEEP_CHOICE, STRATEGY_NAME, compose
from vdnn.plan.auto.greedy_choice import greedy
from vdnn.plan.auto.integer_program import Learned, Optimiser, Solution
from vdnn.plan.auto.program_data import ProgramData, margins
from vdnn.plan.auto.ties import units
from vdnn.plan.auto.traffic import BindingMoment
from vdnn.plan.model.bounds import largest_op_nbytes, minimum_budget
from vdnn.plan.model.gaps import NbytesArray
from vdnn.plan.model.problem import Problem
from vdnn.plan.model.surroundings import ALONE
from vdnn.plan.plan import Plan
from vdnn.plan.shared.infeasible import bounds_of_tiers, infeasible
from vdnn.plan.shared.per_moment import largest_per_moment
from vdnn.plan.shared.workspaces import fitting_variants, smallest_variants
from vdnn.plan.strategies import checkpoint_sqrt, offload, recompute, superneurons, vdnn_all

NUM_RUNGS = 48
"""Of the ladder of budgets: what is lost by rounding down is at most a fiftieth of what there is to save."""

MAX_COMBINATIONS = 300
"""Combinations of choices up to which all of them are tried."""

MAX_SIMULATED_OPS = 60_000
"""How many simulated ops the search may take, at some twenty microseconds each; at least a few plans."""

SOLVE_COST_OPS_PER_UNIT = 25
"""What solving the program once counts as, in simulated ops per unit."""

PLANS_PER_STRATEGY = 8
"""How many plans a published strategy simulates before it answers, more or less."""

MIN_SIMULATED_PLANS = 4
MAX_CORRECTIONS = 8
"""How often the program may be told that it was wrong before the greedy choice is taken."""

NEW_MOMENTS_AT_ONCE = 6
"""Moments that are added to the program at a time."""

LINK_SCALES = (1.0, 1.5, 2.5)
"""How slow the program believes links to be. Copies wait in queues that it does not see; a pessimist moves less."""

STALL_WORTH_A_TRY = 2e-3
"""Of the step time: below this nobody looks for a plan that waits less."""

FULL_LADDER_MAX_OPS = 200
"""Ops up to which every budget below the one asked for is looked at, until the bound forbids that it is faster."""

SLOW_TO_SIMULATE_OPS = 10_000
"""Ops from which on simulating a plan takes half a second."""

TIME_TOLERANCE = 1e-9
"""Of a step time: what adding up a million numbers may lose."""


def solve(problem: Problem) -> Plan:
    kept = compose_kept(problem)
    if problem.budget_nbytes is None or kept.peak_nbytes <= problem.budget_nbytes:
        return replace(kept, bound_s=kept.step_time_s)
    return AutoSearch(problem).best(problem.budget_nbytes)


def compose_kept(problem: Problem) -> Plan:
    """Everything kept, every op computed in the fastest way."""
    return Plan(problem, STRATEGY_NAME, (), {moment: 0 for moment in problem.variants if _is_faster(problem, moment)})


def _is_faster(problem: Problem, moment: int) -> bool:
    return problem.variants[moment][0].seconds < problem.costs[moment].seconds


class AutoSearch:
    """Plans of one problem at any budget."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.candidates = Candidates(problem)
        self.work_left = max(MAX_SIMULATED_OPS, MIN_SIMULATED_PLANS * len(problem.graph))
        self.found: list[Plan] = []
        self._believed_s = 0.0  # what the program thinks possible at the rung it looked at last
        self.rows = [BindingMoment(int(self.candidates.base.argmax()))]

    def best(self, budget_nbytes: int) -> Plan:
        self.found += self.extremes
        if self._combinations <= MAX_COMBINATIONS:
            self.found += self._every_plan()
        else:
            self._climb_down(budget_nbytes)
        fitting = [plan for plan in self.found if plan.peak_nbytes <= budget_nbytes]
        if not fitting:
            raise self._refusal(budget_nbytes)
        fastest = min(fitting, key=lambda plan: plan.step_time_s)
        asked = replace(fastest.problem, budget_nbytes=budget_nbytes)
        return replace(fastest, problem=asked, bound_s=self.bound_s(budget_nbytes))

    @property
    def _combinations(self) -> int:
        return prod(len(item.options) + 1 for item in self.candidates.items[:64])

    def _every_plan(self) -> Iterator[Plan]:
        """All choices, each with copies that borrow nothing, some, or all there is."""
        for choices in product(*(range(len(item.options) + 1) for item in self.candidates.items)):
            bare = compose(self.candidates, choices, 0)
            yield bare
            if any(choices):
                yield from (
                    compose(self.candidates, choices, rung)
                    for rung in self.rungs[:: NUM_RUNGS // 3]
                    if rung > bare.peak_nbytes
                )

    @cached_property
    def rungs(self) -> list[int]:
        """Budgets at which plans are made, ascending: none depends on what was asked."""
        top = max(compose_kept(self.problem).peak_nbytes, self.lowest.peak_nbytes)
        low = min(self.lowest.peak_nbytes, top)
        return sorted({low + (top - low) * k // NUM_RUNGS for k in range(NUM_RUNGS + 1)})

    @cached_property
    def extremes(self) -> list[Plan]:
        """One mechanism before all others, everywhere: whoever asks for little gets one of these. One mechanism alone
        is a plan only small problems have the time for."""
        orders: tuple[tuple[str, ...], ...] = (
            (),
            (OFFLOAD,),
            (RECOMPUTE, OFFLOAD, ENCODE),
            (ENCODE, OFFLOAD, RECOMPUTE),
            (ENCODE_OFFLOAD, OFFLOAD, RECOMPUTE),
            (RECOMPUTE, ENCODE),
            (RECOMPUTE,),
            (ENCODE,),
        )
        few = (
            orders if self._is_small else orders[:5] if len(self.problem.graph) <= SLOW_TO_SIMULATE_OPS else orders[:3]
        )
        plans = [compose(self.candidates, self._preferring(order), 0) for order in few]
        if min(plan.peak_nbytes for plan in plans) > minimum_budget(self.problem)[0]:
            plans += self._offload_floor()
        if min(plan.peak_nbytes for plan in plans) > largest_op_nbytes(self.problem):
            plans += self._checkpoints()
        return plans

    def _preferring(self, order: tuple[str, ...]) -> tuple[int, ...]:
        choices = []
        for item in self.candidates.items:
            kinds = [option.kind for option in item.options]
            choices.append(next((kinds.index(kind) + 1 for kind in order if kind in kinds), KEEP_CHOICE))
        return tuple(choices)

    def _offload_floor(self) -> Iterator[Plan]:
        """What offloading alone can come down to where tiers are bounded."""
        alone = replace(self.problem, surroundings=ALONE)
        try:
            yield replace(offload.solve(replace(alone, budget_nbytes=0)), strategy=STRATEGY_NAME)
        except Infeasible as reason:
            least = offload.solve(replace(alone, budget_nbytes=reason.minimum_nbytes))
            yield replace(least, strategy=STRATEGY_NAME)

    def _checkpoints(self) -> Iterator[Plan]:
        """Where little or nothing can be away, what is made again all at once is all there at once: stretches that are
        made again one after the other need less."""
        unbounded = replace(self.candidates.lean, budget_nbytes=None)
        for policy in (checkpoint_sqrt.solve, recompute.solve_memory):
            found = policy(replace(unbounded, variants={}))
            yield Plan(self.problem, STRATEGY_NAME, found.decisions, smallest_variants(self.problem))

    @cached_property
    def lowest(self) -> Plan:
        return min(self.extremes, key=lambda plan: plan.peak_nbytes)

    def _climb_down(self, budget_nbytes: int) -> None:
        """From the budget's own rung downwards, until no lower one can be faster, or the work is done. Large problems
        ask published strategies once, where the program's own plans are behind what it believed."""
        below = [rung for rung in self.rungs if rung <= budget_nbytes]
        for rung in reversed(below):
            if self.work_left <= 0 or self._cannot_be_faster(rung, self._fastest_s(budget_nbytes)):
                break
            self.found += self._plans_at(rung)
            if self._is_small:
                self.found += self._published(rung)
            elif rung == below[-1] and not self._cannot_be_faster(rung, self._fastest_s(budget_nbytes)):
                self.found += self._published(budget_nbytes)

    def _fastest_s(self, budget_nbytes: int) -> float:
        return min((p.step_time_s for p in self.found if p.peak_nbytes <= budget_nbytes), default=float("inf"))

    def _cannot_be_faster(self, budget_nbytes: int, fastest_s: float) -> bool:
        """By what the program believes if no copy is ever waited for; on large problems already by what it believes of
        waiting, give or take."""
        if self.compute_s + self.optimiser.bound_s(budget_nbytes, self.rows) >= fastest_s * (1 - TIME_TOLERANCE):
            return True
        if self._is_small:
            return False
        return fastest_s <= self._believed_s * (1 + STALL_WORTH_A_TRY)

    def _plans_at(self, budget_nbytes: int) -> list[Plan]:
        """What the program proposes for one budget, believing more and more that links are slow."""
        plans: list[Plan] = []
        for scale in LINK_SCALES:
            plan = self._proposed(budget_nbytes, scale)
            plans += [] if plan is None else [plan]
            if plan is None or plan.timeline.stall_s < STALL_WORTH_A_TRY * plan.step_time_s or self.work_left <= 0:
                break
        return plans

    def _published(self, budget_nbytes: int) -> Iterator[Plan]:
        """What strategies with one or two mechanisms find: a check on the program, and where it finds nothing, the
        answer."""
        asked = replace(self.candidates.lean, budget_nbytes=budget_nbytes)
        everyone = (superneurons.solve, offload.solve, vdnn_all.solve_memory_optimal)
        for strategy in everyone if len(self.problem.graph) <= SLOW_TO_SIMULATE_OPS else everyone[:1]:
            self.work_left -= PLANS_PER_STRATEGY * len(self.problem.graph)
            with suppress(Infeasible):
                plan = strategy(replace(asked, variants={}))
                whole = replace(
                    plan, problem=replace(self.problem, budget_nbytes=budget_nbytes), strategy=STRATEGY_NAME
                )
                lean = replace(whole, variants=smallest_variants(self.problem))
                yield fitting_variants(lean) if self.problem.variants else lean

    @property
    def _is_small(self) -> bool:
        """Then nothing that was learned at one rung is carried to the next: a rung's plans are its own."""
        return len(self.problem.graph) <= FULL_LADDER_MAX_OPS

    @property
    def compute_s(self) -> float:
        return float(self.candidates.elapsed_s[-1])

    @cached_property
    def model(self) -> ProgramData:
        return ProgramData(self.candidates, units(self.candidates))

    @cached_property
    def optimiser(self) -> Optimiser:
        return Optimiser(self.model)

    def _proposed(self, budget_nbytes: int, link_scale: float) -> Plan | None:
        learned = Learned(self.rows[:1] if self._is_small else list(self.rows))
        for _ in range(MAX_CORRECTIONS):
            choices = self._model_fits(budget_nbytes, learned, link_scale)
            if choices is None:
                break
            plan = self._composed(choices, budget_nbytes)
            if plan.peak_nbytes <= budget_nbytes:
                return plan
            wrong = margins(self.model.nbytes_of(choices), largest_per_moment(plan), budget_nbytes)
            learned.margin_nbytes.update({s: max(n, learned.margin_nbytes.get(s, 0)) for s, n in wrong.items()})
            learned.rows += [BindingMoment(moment) for moment in wrong if BindingMoment(moment) not in learned.rows][
                :NEW_MOMENTS_AT_ONCE
            ]
            if self.work_left <= 0:
                break
        return self._greedily(budget_nbytes)

    def _model_fits(self, budget_nbytes: int, learned: Learned, link_scale: float) -> tuple[int, ...] | None:
        """Solve, look for moments that the program did not ask about, ask, solve again."""
        choices: tuple[int, ...] | None = None
        for _ in range(4 * MAX_CORRECTIONS):
            self.work_left -= SOLVE_COST_OPS_PER_UNIT * len(self.model.units)
            solution = self.optimiser.solve(budget_nbytes, learned, link_scale=link_scale)
            if solution is None:
                return None
            choices = solution.choices
            if link_scale == 1.0:
                self._believed_s = self.compute_s + solution.bound_s
            over = self._violated(solution, budget_nbytes, learned, link_scale)
            if not over:
                break
            learned.rows += over
            self.rows += [row for row in over if row not in self.rows]
        return choices

    def _violated(
        self, solution: Solution, budget_nbytes: int, learned: Learned, link_scale: float
    ) -> list[BindingMoment]:
        """Moments that hold too much; else moments that do with the copies under way at them."""
        level = self.model.nbytes_of(solution.choices)
        over = _worst_moments(level, budget_nbytes, learned)
        if over:
            return over
        traffic = self.optimiser.traffic
        late = traffic.rows(solution.choices, level, budget_nbytes, solution.stalls, link_scale)
        new = [(excess, row) for excess, row in late if row not in learned.rows]
        return _apart([row for _, row in sorted(new, key=lambda found: -found[0])])

    def _greedily(self, budget_nbytes: int) -> Plan | None:
        choices = greedy(self.model, budget_nbytes)
        if choices is None:
            return None
        plan = self._composed(choices, budget_nbytes)
        return plan if plan.peak_nbytes <= budget_nbytes else None

    def _composed(self, choices: tuple[int, ...], budget_nbytes: int) -> Plan:
        self.work_left -= 2 * len(self.problem.graph)
        return compose(self.candidates, choices, budget_nbytes)

    def _refusal(self, budget_nbytes: int) -> Infeasible:
        around = self.problem.surroundings
        asked = replace(self.lowest.problem, budget_nbytes=budget_nbytes, surroundings=around)
        bounds = bounds_of_tiers(self.problem)
        way_out = f"shrink the batch: everything that can be away, encoded or made again already is{bounds}"
        return infeasible(replace(self.lowest, problem=asked), way_out)

    def bound_s(self, budget_nbytes: int) -> float:
        """No plan within the budget is faster, by the moments that bind most."""
        return Bound(self.candidates).least_s(budget_nbytes, {row.moment for row in self.rows})


def _worst_moments(level: NbytesArray, budget_nbytes: int, learned: Learned) -> list[BindingMoment]:
    """The worst moment of each stretch over the budget, the worst stretches first."""
    allowed = np.full(len(level), budget_nbytes, dtype=np.int64)
    for moment, margin in learned.margin_nbytes.items():
        allowed[moment] -= margin
    over = level > allowed
    over[[row.moment for row in learned.rows if row == BindingMoment(row.moment)]] = False
    worst: list[int] = []
    for stretch in np.split(np.arange(len(level)), np.flatnonzero(np.diff(over.astype(np.int8))) + 1):
        if over[stretch[0]]:
            worst.append(int(stretch[level[stretch].argmax()]))
    return [
        BindingMoment(moment) for moment in sorted(worst, key=lambda moment: -int(level[moment]))[:NEW_MOMENTS_AT_ONCE]
    ]


def _apart(rows: list[BindingMoment]) -> list[BindingMoment]:
    """The first rows, of each stretch only one."""
    chosen: dict[tuple[int, int], BindingMoment] = {}
    for row in rows:
        chosen.setdefault((row.since, row.upto), row)
    return list(chosen.values())[:NEW_MOMENTS_AT_ONCE]
