"""The choices as an integer program.

Enters: a ground, its units, and what has been learned so far: the steps that bind, and by how much the program was
wrong about each. Leaves: a choice per item, and a bound. CP-SAT solves it, on one thread and within a fixed amount of
work, so that the same question has the same answer.

    minimise   added compute + stall out + stall back
    subject to one choice per unit
               base(t) + bytes of the choices at t + ways of computing t <= budget - learned(t)     for the steps that bind
               copies sent since f <= compute from f to the peak + stall out                        for some f
               copies back until u <= compute from the peak to u + stall back                       for some u
               what is recomputed has its sources there: kept, or back early and then counted

Memory is only asked for at steps that turned out to bind: gaps nest (first out, last back), so there are few. The
program is linear and small; what it does not see (the moment at which an encoder holds both forms, queues of copies
inside a window) the simulator sees, and what the simulator says comes back as `learned`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from ortools.linear_solver.python import model_builder

from vdnn.plan.gaps import Bytes
from vdnn.plan.optimiser.demands import Demand, demands, recompute_position, source_items
from vdnn.plan.optimiser.items import ENCODE, Ground, Item, Option
from vdnn.plan.optimiser.ties import Unit

Variable = model_builder.Variable
LinearExpr = model_builder.LinearExpr
Term = tuple[Variable, float]

FEWER = 1e-7
"""Of a step: what a decision costs by itself, so that of equally fast plans the one with the fewest is chosen."""

SETTLED = 0.999
"""A choice that the relaxation makes this clearly stays."""

SCIP = "limits/gap = 0.001\nlimits/nodes = {nodes}\nrandomization/randomseedshift = 0\n"
"""How the solver is told to stop: by nodes, which are the same on every machine, not by time."""

WINDOWS = 12
"""How many windows of each direction are asked for."""

SEED = 2016  # of the solver; any would do, but always the same


@dataclass
class Learned:
    """What the simulator has taught. `rows`: steps that bind. `margin_nbytes`: what a step needs beyond what the
    program believes."""

    rows: list[int] = field(default_factory=list)
    margin_nbytes: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Solution:
    """`choices` per item; `positions` per unit, None where the relaxation is of two minds; `added_s` by the program's own account; `bound_s`: nothing it can see adds less."""

    choices: tuple[int, ...]
    positions: tuple[int | None, ...]
    added_s: float
    bound_s: float


class Model:
    """The tables that every solve of one ground shares."""

    def __init__(self, ground: Ground, units: Sequence[Unit]) -> None:
        self.ground, self.units, self.items = ground, units, ground.items
        self.unit_of = {k: u for u, members in enumerate(units) for k in members}
        self.sources = {
            k: [j for j in sources if j in self.unit_of]
            for k, sources in source_items(ground).items()
            if k in self.unit_of
        }
        self.demands = demands(ground, self.sources)
        self.fresh = _fresh_nbytes(ground)
        gaps = [item.gap for item in self.items]
        self.leave = np.array([gap.leave for gap in gaps], dtype=np.int64)
        self.until = np.array([gap.until for gap in gaps], dtype=np.int64)
        self.nbytes = np.array([gap.nbytes for gap in gaps], dtype=np.int64)

    def nbytes_of(self, choices: Sequence[int]) -> Bytes:
        """Bytes of every step under a choice per item, as the program sees them."""
        change = np.zeros(len(self.ground.graph) + 1, dtype=np.int64)
        passing = np.zeros(len(self.ground.graph), dtype=np.int64)
        for k, chosen in enumerate(choices):
            if chosen:
                item, option = self.items[k], self.items[k].options[chosen - 1]
                change[item.gap.leave + 1] -= item.gap.nbytes
                change[self._earliest(k, choices)] += item.gap.nbytes
                change[item.gap.leave] += option.held_nbytes
                change[min(item.gap.until + 1, len(passing))] -= option.held_nbytes
                passing[item.gap.until] = max(passing[item.gap.until], self.passing_nbytes(item, option))
        level: Bytes = self.ground.base + change.cumsum()[:-1] + passing
        return level

    def _earliest(self, k: int, choices: Sequence[int]) -> int:
        """Where an item that is given up has to be back: at its next use, or where a recomputation asks for it."""
        asked = [d.step for d in self.demands.get(k, ()) if self._is_asked(d, choices)]
        return min([self.items[k].gap.until, *asked])

    def _is_asked(self, demand: Demand, choices: Sequence[int]) -> bool:
        chain = {demand.asker, demand.for_item}
        return all(choices[j] and choices[j] == recompute_position(self.items[j]) for j in chain)

    def passing_nbytes(self, item: Item, option: Option) -> int:
        """What a replay holds beyond what its step will hold anyway when its own op runs."""
        return max(0, option.passing_nbytes - int(self.fresh[item.gap.until]))

    def solve(
        self,
        budget_nbytes: int,
        learned: Learned,
        *,
        link_scale: float = 1.0,
        nodes: int = 200,
    ) -> Solution | None:
        """The cheapest choices within the budget at the steps that bind; None: there are none.

        The relaxation first: where it is whole, its choice stays, and the integer program decides about the rest."""
        relaxed = _Program(self, budget_nbytes, learned, link_scale, {}, is_relaxed=True).solve(nodes)
        if relaxed is None:
            return None
        settled = {u: p for u, p in enumerate(relaxed.positions) if p is not None}
        for fixed in (settled, {}):
            solution = _Program(self, budget_nbytes, learned, link_scale, fixed, is_relaxed=False).solve(nodes)
            if solution is not None:
                return replace(solution, bound_s=relaxed.bound_s)
        return None

    def bound_s(self, budget_nbytes: int, learned: Learned) -> float:
        """What every choice within the budget adds at least, if copies cost no waiting."""
        relaxed = _Program(self, budget_nbytes, learned, 0.0, {}, is_relaxed=True).solve(0)
        return 0.0 if relaxed is None else max(0.0, relaxed.bound_s)


def _fresh_nbytes(ground: Ground) -> Bytes:
    """Bytes that begin at each step: its op's results and workspace."""
    fresh = np.array([cost.workspace_nbytes for cost in ground.lean.costs.ops], dtype=np.int64)
    for storage, life in zip(ground.graph.storages, ground.graph.lifetimes, strict=True):
        if life is not None:
            fresh[life.begin] += storage.nbytes
    return fresh


class _Program:
    """One integer program, being written. Bytes are counted in shares of the budget and seconds in shares of the step,
    so that all numbers are of one size."""

    def __init__(
        self,
        model: Model,
        budget_nbytes: int,
        learned: Learned,
        link_scale: float,
        settled: Mapping[int, int],
        *,
        is_relaxed: bool,
    ) -> None:
        self.model, self.ground, self.budget_nbytes, self.learned = model, model.ground, budget_nbytes, learned
        self.link_scale, self.is_relaxed = link_scale, is_relaxed
        self.mip = model_builder.Model()
        self.total_s = max(float(self.ground.elapsed_s[-1]), self._dearest_s(), 1e-12)
        self.x = [self._choices_of(members) for members in model.units]
        for u, position in settled.items():
            self.x[u][position].lower_bound = 1.0
        self.objective: list[Term] = []
        for u, members in enumerate(model.units):
            for position, literal in enumerate(self.x[u][1:], start=1):
                seconds = sum(model.items[k].options[position - 1].seconds for k in members)
                self.objective.append((literal, seconds / self.total_s + FEWER))
        self.early = self._early()
        self._conflicts()
        for step in learned.rows:
            self._row(step)
        self._windows()
        self._tiers()

    def _yes_or_no(self) -> Variable:
        return self.mip.new_num_var(0.0, 1.0, "") if self.is_relaxed else self.mip.new_bool_var("")

    def _dearest_s(self) -> float:
        return max((option.seconds for item in self.model.items for option in item.options), default=0.0)

    def _choices_of(self, members: Unit) -> list[Variable]:
        """One variable per option of a unit, keeping first."""
        offered = self.model.items[members[0]].options
        literals = [self._yes_or_no() for _ in range(len(offered) + 1)]
        self.mip.add(sum_of([(literal, 1.0) for literal in literals]) == 1)
        return literals

    def _early(self) -> dict[tuple[int, int], Variable]:
        """(unit, rank) -> it is back at its demand of that rank, the latest first; a demand further ahead implies the
        ones behind it."""
        ranks: dict[tuple[int, int], Variable] = {}
        written: set[tuple[int, ...]] = set()
        for k, asked in self.model.demands.items():
            u = self.model.unit_of[k]
            for rank, demand in enumerate(asked):
                if (u, rank) not in ranks:
                    ranks[u, rank] = self.mip.new_num_var(0.0, 1.0, "")
                chain = tuple(sorted({self.model.unit_of[demand.asker], self.model.unit_of[demand.for_item]}))
                if (u, rank, *chain) not in written:
                    written.add((u, rank, *chain))
                    self._asks(demand, ranks[u, rank])
        for (u, rank), variable in ranks.items():
            if (u, rank - 1) in ranks:
                self.mip.add(ranks[u, rank - 1] - variable >= 0)
        return ranks

    def _asks(self, demand: Demand, early: Variable) -> None:
        """Recomputed chain and not kept: it has to be back."""
        chain = [self._recomputed(j) for j in dict.fromkeys((demand.asker, demand.for_item))]
        kept = self.x[self.model.unit_of[demand.source]][0]
        self.mip.add(sum_of([(early, 1.0), (kept, 1.0), *((asker, -1.0) for asker in chain)]) >= 1 - len(chain))

    def _recomputed(self, k: int) -> Variable:
        position = recompute_position(self.model.items[k])
        assert position is not None, "only what can be recomputed asks"
        return self.x[self.model.unit_of[k]][position]

    def _conflicts(self) -> None:
        """Nothing is made again from a code that has not kept every bit."""
        for k, sources in self.model.sources.items():
            for j in sources:
                for position, option in enumerate(self.model.items[j].options, start=1):
                    if not option.keeps_values:
                        self.mip.add(self._recomputed(k) + self.x[self.model.unit_of[j]][position] <= 1)

    def _row(self, step: int) -> None:
        """What a step holds."""
        terms: list[Term] = []
        room = self.budget_nbytes - self.learned.margin_nbytes.get(step, 0) - int(self.ground.base[step])
        for u, members in enumerate(self.model.units):
            near = [k for k in members if self.model.leave[k] <= step <= self.model.until[k]]
            if near:
                terms += self._terms_of(u, near, step)
        terms += self._ways_of_computing(step)
        unit = max(self.budget_nbytes, 1)
        if terms:
            self.mip.add(sum_of([(v, nbytes / unit) for v, nbytes in terms]) <= room / unit)

    def _terms_of(self, u: int, near: list[int], step: int) -> Iterable[Term]:
        items = self.model.items
        for position in range(1, len(self.x[u])):
            nbytes = sum(self._change(items[k], items[k].options[position - 1], step) for k in near)
            if nbytes:
                yield self.x[u][position], nbytes
        by_rank: dict[int, int] = {}
        for k in near:
            asked = self.model.demands.get(k, ())
            # Ranks go from the latest demand to the earliest: the one that holds at a step is the latest not after it.
            rank = next((r for r, demand in enumerate(asked) if demand.step <= step), None)
            if rank is not None and step < items[k].gap.until:
                by_rank[rank] = by_rank.get(rank, 0) + items[k].gap.nbytes
        for rank, nbytes in by_rank.items():
            yield self.early[u, rank], nbytes

    def _change(self, item: Item, option: Option, step: int) -> int:
        away = -item.gap.nbytes if item.gap.covers(step) else 0
        code = option.held_nbytes if option.kind == ENCODE else 0
        passing = self.model.passing_nbytes(item, option) if step == item.gap.until else 0
        return away + code + passing

    def _ways_of_computing(self, step: int) -> Iterable[Term]:
        """The variants of a step, each with its workspace beyond the smallest, and its time beyond the fastest."""
        offered = self.ground.problem.variants.get(step)
        if not offered:
            return
        least, fastest = self.ground.lean.costs[step].workspace_nbytes, self.ground.fastest_costs[step].seconds
        ways = [cost for cost in (self.ground.problem.costs[step], *offered) if cost.workspace_nbytes >= least]
        literals = [self._yes_or_no() for _ in ways]
        self.mip.add(sum_of([(literal, 1.0) for literal in literals]) == 1)
        for literal, cost in zip(literals, ways, strict=True):
            self.objective.append((literal, (cost.seconds - fastest) / self.total_s))
            yield literal, cost.workspace_nbytes - least

    def _windows(self) -> None:
        """Copies need time on their link: out before the peak, back after it."""
        if not self.learned.rows:
            return
        peak, elapsed = self.learned.rows[0], self.ground.elapsed_s
        crossing = [k for k, item in enumerate(self.model.items) if k in self.model.unit_of and item.gap.covers(peak)]
        for is_out in (True, False):
            moments = sorted({self._moment(k, is_out) for k in crossing}, reverse=is_out)
            stall = self.mip.new_num_var(0.0, 1e6, "")
            self.objective.append((stall, 1.0))
            for moment in moments[:: max(1, len(moments) // WINDOWS)]:
                hidden_s = float(elapsed[peak] - elapsed[moment + 1] if is_out else elapsed[moment] - elapsed[peak])
                copies = list(self._copies(crossing, moment, is_out))
                if copies:
                    self.mip.add(sum_of([*copies, (stall, -1.0)]) <= max(hidden_s, 0.0) / self.total_s)

    def _moment(self, k: int, is_out: bool) -> int:
        gap = self.model.items[k].gap
        return gap.final if is_out else gap.until

    def _copies(self, crossing: list[int], moment: int, is_out: bool) -> Iterable[Term]:
        sums: dict[tuple[int, int], float] = {}
        for k in crossing:
            inside = self._moment(k, is_out) >= moment if is_out else self._moment(k, is_out) <= moment
            for position, option in enumerate(self.model.items[k].options, start=1) if inside else ():
                if option.tier is not None:
                    key = self.model.unit_of[k], position
                    sums[key] = sums.get(key, 0.0) + (option.out_s if is_out else option.back_s)
        for (u, position), seconds in sums.items():
            yield self.x[u][position], seconds * self.link_scale / self.total_s

    def _tiers(self) -> None:
        """What a bounded tier holds at the steps that bind."""
        for tier in self.ground.problem.hardware.tiers[1:]:
            for step in self.learned.rows if tier.nbytes is not None else ():
                stored = self._stored(tier.name, step)
                if stored:
                    unit = max(tier.nbytes or 0, 1)
                    terms = [(self.x[u][p], nbytes / unit) for (u, p), nbytes in stored.items()]
                    self.mip.add(sum_of(terms) <= (tier.nbytes or 0) / unit)

    def _stored(self, tier: str, step: int) -> dict[tuple[int, int], int]:
        stored: dict[tuple[int, int], int] = {}
        for k, item in enumerate(self.model.items):
            if k not in self.model.unit_of or not item.gap.covers(step):
                continue
            for position, option in enumerate(item.options, start=1):
                if option.tier == tier:
                    nbytes = item.gap.nbytes if option.code is None else option.code.nbytes
                    key = self.model.unit_of[k], position
                    stored[key] = stored.get(key, 0) + nbytes
        return stored

    def solve(self, nodes: int) -> Solution | None:
        self.mip.minimize(sum_of(self.objective))
        solver = model_builder.Solver("glop" if self.is_relaxed else "scip")
        if not self.is_relaxed:
            solver.set_solver_specific_parameters(SCIP.format(nodes=nodes))
        if solver.solve(self.mip) not in (model_builder.SolveStatus.OPTIMAL, model_builder.SolveStatus.FEASIBLE):
            return None
        choices, positions = [0] * len(self.model.items), []
        for u, members in enumerate(self.model.units):
            weights = [solver.value(variable) for variable in self.x[u]]
            position = int(np.argmax(weights))
            positions.append(position if weights[position] >= SETTLED else None)
            for k in members:
                choices[k] = position
        seconds = solver.objective_value * self.total_s
        return Solution(tuple(choices), tuple(positions), seconds, seconds)


def sum_of(terms: Sequence[Term]) -> LinearExpr:
    return LinearExpr.weighted_sum([variable for variable, _ in terms], [weight for _, weight in terms])


def margins(believed: Bytes, found: Bytes, budget_nbytes: int) -> Mapping[int, int]:
    """Of each step over the budget: what it needs beyond what was believed."""
    over = np.flatnonzero(found > budget_nbytes)
    return {int(step): int(found[step] - believed[step]) for step in over}
