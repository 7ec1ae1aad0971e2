"""The choices as an integer program.

Enters: a model, a budget, and what has been learned so far: the moments that bind, and by how much the program was
wrong about each. Leaves: a choice per item, and a bound.

    minimise   added compute + stalls
    subject to one choice per unit
               base(t) + bytes of the choices at t + way of computing t <= budget - learned(t)   for moments t that bind
               the same with copies that are under way at t, less what stalls let through        where links are late
               what is recomputed has its sources there: kept, or back early, and counted from then on
               bytes in a bounded tier <= its size

Memory is only asked for at moments that turned out to bind: gaps nest (first out, last back), so there are few. The
relaxation (GLOP) is solved first and gives the bound; where it is whole its choice stays, and the integer program
(SCIP) decides about the rest. Both stop by what they have done, never by the clock, so that the same question has the
same answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from ortools.linear_solver.python import model_builder

from vdnn.plan.auto.candidates import ENCODE, GapOptions, Option
from vdnn.plan.auto.demands import Demand
from vdnn.plan.auto.program_data import ProgramData
from vdnn.plan.auto.ties import Unit
from vdnn.plan.auto.traffic import BindingMoment, Traffic

COST_OF_A_DECISION = 1e-7
"""Of a step: what a decision costs by itself, so that of equally fast plans the one with the fewest is chosen."""

CLEAR_CHOICE = 0.999
"""A choice that the relaxation makes this clearly stays."""

SCIP_PARAMETERS = "limits/gap = 0.002\nlimits/nodes = 30\nseparating/maxrounds = 0\nseparating/maxroundsroot = 0\n"
"""The relaxation has settled most; what is left need not be solved to the last digit."""

ROUNDED_AWAY = 1e-10
"""A weight of this size is what rounding left."""

NUM_STALL_PARTS = 8
"""Parts of the step that can be waited in."""

Term = tuple[int, float]
"""A variable, by position, and its weight."""


@dataclass(frozen=True, slots=True)
class Solution:
    """`choices` per item; `positions` per unit, None where the relaxation is of two minds; `bound_s`: no choice that
    the program can see adds less. `stalls`: seconds that are waited, by part of the step."""

    choices: tuple[int, ...]
    positions: tuple[int | None, ...]
    bound_s: float
    stalls: tuple[float, ...]


@dataclass
class Learned:
    """What the simulator has taught. `rows`: what binds. `margin_nbytes`: what a moment needs beyond what the program
    believes."""

    rows: list[BindingMoment] = field(default_factory=list)
    margin_nbytes: dict[int, int] = field(default_factory=dict)


class Optimiser:
    """Programs of one model: what they have in common is written once."""

    def __init__(self, model: ProgramData) -> None:
        self.model = model
        self.traffic = Traffic(model)

    def solve(self, budget_nbytes: int, learned: Learned, *, link_scale: float = 1.0) -> Solution | None:
        """The cheapest choices within the budget at the moments that bind; None: there are none. `link_scale`: how much
        slower links are believed to be than they are."""
        relaxed = self._program(True, budget_nbytes, learned, link_scale, {}).solve()
        if relaxed is None:
            return None
        settled = {u: p for u, p in enumerate(relaxed.positions) if p is not None}
        if len(settled) == len(relaxed.positions):
            return relaxed
        for fixed in (settled, {}):
            solution = self._program(False, budget_nbytes, learned, link_scale, fixed).solve()
            if solution is not None:
                return replace(solution, bound_s=relaxed.bound_s)
        return None

    def bound_s(self, budget_nbytes: int, rows: Sequence[BindingMoment]) -> float:
        """What every choice within the budget adds at least, even if no copy is ever waited for."""
        plain = [row for row in rows if row.since < 0 and row.upto < 0]
        relaxed = self._program(True, budget_nbytes, Learned(plain), 0.0, {}).solve()
        return 0.0 if relaxed is None else max(0.0, relaxed.bound_s)

    def _program(
        self, is_relaxed: bool, budget_nbytes: int, learned: Learned, link_scale: float, settled: Mapping[int, int]
    ) -> IntegerProgram:
        draft = self._relaxed if is_relaxed else self._whole
        return IntegerProgram(draft, self.traffic, budget_nbytes, learned, link_scale, settled)

    @cached_property
    def _relaxed(self) -> Draft:
        return Draft(self.model, is_relaxed=True)

    @cached_property
    def _whole(self) -> Draft:
        return Draft(self.model, is_relaxed=False)


class Draft:
    """The part that depends neither on the budget nor on what was learned. Seconds are shares of the step, so that all
    numbers are of one size."""

    def __init__(self, model: ProgramData, *, is_relaxed: bool) -> None:
        self.model, self.candidates, self.is_relaxed = model, model.candidates, is_relaxed
        self.mip = model_builder.Model()
        self.variables: list[model_builder.Variable] = []
        self.total_s = max(float(self.candidates.elapsed_s[-1]), self._dearest_s(), 1e-12)
        self.x = [self._choices_of(members) for members in model.units]
        self.objective: list[Term] = [
            term for u, members in enumerate(model.units) for term in self._prices(u, members)
        ]
        self.early = self._early()
        self._conflicts()
        self.waits = list(self._waits())
        self.stalls = [self.number(1e6) for _ in range(NUM_STALL_PARTS)]
        self.objective += [(stall, 1.0) for stall in self.stalls]

    def _dearest_s(self) -> float:
        return max((option.seconds for item in self.model.items for option in item.options), default=0.0)

    def _yes_or_no(self) -> int:
        return self.number(1.0) if self.is_relaxed else self._add(self.mip.new_bool_var(""))

    def number(self, most: float) -> int:
        return self._add(self.mip.new_num_var(0.0, most, ""))

    def _add(self, variable: model_builder.Variable) -> int:
        self.variables.append(variable)
        return len(self.variables) - 1

    def sum_of(self, terms: Sequence[Term]) -> model_builder.LinearExpr:
        return weighted(self.variables, terms)

    def _choices_of(self, members: Unit) -> list[int]:
        """One variable per option of a unit, keeping first."""
        offered = self.model.items[members[0]].options
        literals = [self._yes_or_no() for _ in range(len(offered) + 1)]
        self.mip.add(self.sum_of([(literal, 1.0) for literal in literals]) == 1)
        return literals

    def _prices(self, u: int, members: Unit) -> Iterable[Term]:
        for position, literal in enumerate(self.x[u][1:], start=1):
            seconds = sum(self.model.items[k].options[position - 1].seconds for k in members)
            yield literal, seconds / self.total_s + COST_OF_A_DECISION

    def _early(self) -> dict[tuple[int, int], int]:
        """(unit, rank) -> it is back at its demand of that rank, the latest first; a demand further ahead implies the
        ones behind it."""
        ranks: dict[tuple[int, int], int] = {}
        written: set[tuple[int, ...]] = set()
        for k, asked in self.model.demands.items():
            u = self.model.unit_of[k]
            for rank, demand in enumerate(asked):
                if (u, rank) not in ranks:
                    ranks[u, rank] = self.number(1.0)
                chain = sorted({self.model.unit_of[demand.asker], self.model.unit_of[demand.for_item]})
                if (u, rank, *chain) not in written:
                    written.add((u, rank, *chain))
                    self._asks(demand, ranks[u, rank])
        for (u, rank), variable in ranks.items():
            if rank:
                self.mip.add(self.sum_of([(ranks[u, rank - 1], 1.0), (variable, -1.0)]) >= 0)
        return ranks

    def _asks(self, demand: Demand, early: int) -> None:
        """Recomputed chain and not kept: it has to be back."""
        chain = dict.fromkeys((demand.asker, demand.for_item))
        kept = self.x[self.model.unit_of[demand.source]][0]
        terms = [(early, 1.0), (kept, 1.0), *((asker, -1.0) for j in chain for asker in self._recomputed(j))]
        self.mip.add(self.sum_of(terms) >= 1 - len(chain))

    def _recomputed(self, k: int) -> list[int]:
        """The variables of which one is set when an item is recomputed."""
        return [self.x[self.model.unit_of[k]][position] for position in self.model.recompute[k]]

    def _conflicts(self) -> None:
        """Nothing is made again from an encoding that has not kept every bit."""
        for k, sources in self.model.sources.items():
            for j in sources:
                for position, option in enumerate(self.model.items[j].options, start=1):
                    if not option.keeps_values:
                        encoded = self.x[self.model.unit_of[j]][position]
                        self.mip.add(self.sum_of([(v, 1.0) for v in (*self._recomputed(k), encoded)]) <= 1)

    def _waits(self) -> Iterable[Term]:
        """Copies that are back before the peak, or leave after it: what their own gap does not hide."""
        peak = int(self.candidates.base.argmax())
        for k, u in self.model.unit_of.items():
            item = self.model.items[k]
            for position, option in enumerate(item.options, start=1) if not item.gap.covers(peak) else ():
                waited_s = option.out_s + option.back_s - self.candidates.away_s(item.gap)
                if option.tier is not None and waited_s > 0:
                    yield self.x[u][position], waited_s / self.total_s


class IntegerProgram:
    """A draft, completed for one budget. Bytes are shares of the budget."""

    def __init__(
        self,
        draft: Draft,
        traffic: Traffic,
        budget_nbytes: int,
        learned: Learned,
        link_scale: float,
        settled: Mapping[int, int],
    ) -> None:
        self.draft, self.model, self.candidates = draft, draft.model, draft.candidates
        self.traffic, self.link_scale = traffic, link_scale
        self.budget_nbytes, self.learned = budget_nbytes, learned
        self.mip = draft.mip.clone()
        self.variables = [self.mip.var_from_index(k) for k in range(len(draft.variables))]
        self.objective = [*draft.objective, *((variable, wait * link_scale) for variable, wait in draft.waits)]
        for u, position in settled.items():
            self.variables[draft.x[u][position]].lower_bound = 1.0
        for row in learned.rows:
            self._row(row)
        self._tiers()

    def _sum_of(self, terms: Sequence[Term]) -> model_builder.LinearExpr:
        return weighted(self.variables, terms)

    def _row(self, row: BindingMoment) -> None:
        """What a moment holds, and what is under way then."""
        moment = row.moment
        room = self.budget_nbytes - self.learned.margin_nbytes.get(moment, 0) - int(self.candidates.base[moment])
        terms: list[Term] = []
        near = np.flatnonzero((self.model.leave <= moment) & (moment <= self.model.end)).tolist()
        by_unit: dict[int, list[int]] = {}
        for k in near:
            if k in self.model.unit_of:
                by_unit.setdefault(self.model.unit_of[k], []).append(k)
        for u, members in by_unit.items():
            terms += self._terms_of(u, members, moment)
        hidden_nbytes = 0.0
        if row.since >= 0 or row.upto >= 0:
            copies, hidden_nbytes = self._under_way(row)
            terms += copies
        terms += self._ways_of_computing(moment)
        unit = max(self.budget_nbytes, 1)
        if terms:
            self.mip.add(self._sum_of([(v, nbytes / unit) for v, nbytes in terms]) <= (room + hidden_nbytes) / unit)

    def _under_way(self, row: BindingMoment) -> tuple[list[Term], float]:
        """Copies of the row's stretch, less what stalls let through; and the bytes that compute hides."""
        elapsed, is_out = self.candidates.elapsed_s, row.since >= 0
        sums: dict[int, float] = {}
        for k in np.flatnonzero((self.model.leave < row.moment) & (row.moment < self.model.until)).tolist():
            gap, u = self.model.items[k].gap, self.model.unit_of.get(k)
            inside = gap.final >= row.since if is_out else gap.until <= row.upto
            for position, option in enumerate(self.model.items[k].options, start=1) if inside and u is not None else ():
                if option.tier is not None:
                    nbytes = self.traffic.nbytes(option, is_out=is_out)
                    variable = self.draft.x[self.model.unit_of[k]][position]
                    sums[variable] = sums.get(variable, 0.0) + nbytes
        rate = (self.traffic.out if is_out else self.traffic.back) / max(self.link_scale, 1e-9)
        span = (row.since + 1, row.moment) if is_out else (row.moment + 1, row.upto)
        stalls = [self.draft.stalls[part] for part in self.traffic.parts(row, NUM_STALL_PARTS)]
        terms = [*sums.items(), *((stall, -rate * self.draft.total_s) for stall in stalls)]
        return terms, rate * float(elapsed[span[1]] - elapsed[span[0]])

    def _terms_of(self, u: int, near: list[int], moment: int) -> Iterable[Term]:
        items, x = self.model.items, self.draft.x[u]
        for position in range(1, len(x)):
            nbytes = sum(self._change(items[k], items[k].options[position - 1], moment) for k in near)
            if nbytes:
                yield x[position], nbytes
        by_rank: dict[int, int] = {}
        for k in near:
            asked = self.model.demands.get(k, ())
            # Ranks go from the latest demand to the earliest: the one that holds at a moment is the latest not after
            # it.
            rank = next((r for r, demand in enumerate(asked) if demand.moment <= moment), None)
            if rank is not None and moment < items[k].gap.until:
                by_rank[rank] = by_rank.get(rank, 0) + items[k].gap.nbytes
        for rank, nbytes in by_rank.items():
            yield self.draft.early[u, rank], nbytes

    def _change(self, item: GapOptions, option: Option, moment: int) -> int:
        end = option.end(item.gap)
        away = -item.gap.nbytes if item.gap.leave < moment < end else 0
        encoding = option.held_nbytes if option.kind == ENCODE and item.gap.leave <= moment <= end else 0
        passing = self.model.passing_nbytes(item, option) if moment == item.gap.until else 0
        return away + encoding + passing

    def _ways_of_computing(self, moment: int) -> Iterable[Term]:
        """The variants of an op, each with its workspace beyond the smallest, and its time beyond the fastest."""
        offered = self.candidates.problem.variants.get(moment)
        if not offered:
            return
        least, fastest = (
            self.candidates.lean.costs[moment].workspace_nbytes,
            self.candidates.fastest_costs[moment].seconds,
        )
        ways = [self.candidates.problem.costs[moment], *offered]
        for literal, cost in zip(self._exactly_one(len(ways)), ways, strict=True):
            self.objective.append((literal, (cost.seconds - fastest) / self.draft.total_s))
            yield literal, cost.workspace_nbytes - least

    def _exactly_one(self, count: int) -> list[int]:
        first = len(self.variables)
        for _ in range(count):
            relaxed = self.draft.is_relaxed
            self.variables.append(self.mip.new_num_var(0.0, 1.0, "") if relaxed else self.mip.new_bool_var(""))
        literals = list(range(first, first + count))
        self.mip.add(self._sum_of([(literal, 1.0) for literal in literals]) == 1)
        return literals

    def _tiers(self) -> None:
        """What a bounded tier holds at the moments that bind."""
        for tier in self.candidates.problem.hardware.tiers[1:]:
            for row in self.learned.rows if tier.nbytes is not None else ():
                stored = self._stored(tier.name, row.moment)
                unit = max(tier.nbytes or 0, 1)
                if sum(stored.values()) > (tier.nbytes or 0):
                    terms = [(variable, nbytes / unit) for variable, nbytes in stored.items()]
                    self.mip.add(self._sum_of(terms) <= (tier.nbytes or 0) / unit)

    def _stored(self, tier: str, moment: int) -> dict[int, int]:
        stored: dict[int, int] = {}
        for k in np.flatnonzero((self.model.leave < moment) & (moment < self.model.until)).tolist():
            item, unit = self.model.items[k], self.model.unit_of.get(k)
            for position, option in enumerate(item.options, start=1) if unit is not None else ():
                if option.tier == tier:
                    nbytes = item.gap.nbytes if option.encoding is None else option.encoding.nbytes
                    variable = self.draft.x[self.model.unit_of[k]][position]
                    stored[variable] = stored.get(variable, 0) + nbytes
        return stored

    def solve(self) -> Solution | None:
        self.mip.minimize(self._sum_of(self.objective))
        solver = model_builder.Solver("glop" if self.draft.is_relaxed else "scip")
        if not self.draft.is_relaxed:
            solver.set_solver_specific_parameters(SCIP_PARAMETERS)
        if solver.solve(self.mip) not in (model_builder.SolveStatus.OPTIMAL, model_builder.SolveStatus.FEASIBLE):
            return None
        values = solver.values(self.mip.get_variables()).to_numpy()
        choices = [0] * len(self.model.items)
        positions: list[int | None] = []
        for u, members in enumerate(self.model.units):
            weights = values[self.draft.x[u]]
            position = int(weights.argmax())
            positions.append(position if weights[position] >= CLEAR_CHOICE else None)
            for k in members:
                choices[k] = position
        stalls = tuple(float(values[stall]) * self.draft.total_s for stall in self.draft.stalls)
        return Solution(tuple(choices), tuple(positions), float(solver.objective_value) * self.draft.total_s, stalls)


def weighted(variables: Sequence[model_builder.Variable], terms: Sequence[Term]) -> model_builder.LinearExpr:
    """The sum, each variable once. Weights that cancel to next to nothing are nothing: they confuse the solver."""
    sums: dict[int, float] = {}
    for variable, weight in terms:
        sums[variable] = sums.get(variable, 0.0) + weight
    kept = {variable: weight for variable, weight in sums.items() if abs(weight) > ROUNDED_AWAY}
    return model_builder.LinearExpr.weighted_sum([variables[k] for k in kept], list(kept.values()))
