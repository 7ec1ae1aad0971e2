"""A better plan while a model trains: the first steps are the measurement, later ones are compared with it.

Enters: an executor and what its plan was made from. Leaves: better editions for the executor, between two steps. The
one idea: **plan at once, measure while training**. The first plan rests on single trials of ops (`cost/tried.py`). The
next two steps are timed instruction by instruction; where they differ from what was believed, or where other ways of
computing ops were tried meanwhile, the plan is made again with the times that were seen, and takes over between two
steps if it is faster. It is made in the background where the budget has room for that, else between two steps.
Afterwards a step is compared with its plan, and copies with their link: a disk that becomes slow shows in the first
step that uses it.

Between two steps nothing of a step is there, so that trials of ops have the room that a step would take.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import replace
from time import perf_counter

from vdnn.compile.estimate import at_least_small
from vdnn.compile.executable import edition_for
from vdnn.compile.judged import JudgedFor
from vdnn.compile.session import Session
from vdnn.compile.step_times import CodecCall, StepTimes, scaled, step_times, with_codec_factors, with_factors
from vdnn.compile.traced_step import FormProblem
from vdnn.cost.cost_cache import CostCache
from vdnn.cost.op_calls import may_be_tried
from vdnn.cost.table import OpCost
from vdnn.errors import Infeasible, TierFull
from vdnn.hardware.busy_cores import QUIET_SHARE, Share, others_share
from vdnn.hardware.device import Hardware
from vdnn.hardware.observed_links import ObservedLink, as_observed, observed_since
from vdnn.plan.files.saved import chosen_forms, offered_again
from vdnn.plan.model.problem import Problem
from vdnn.plan.plan import Plan
from vdnn.plan.planner import Question
from vdnn.plan.planner_process import LARGE_STEP_OPS, PROCESS_NBYTES, PlannerProcess
from vdnn.plan.shared.account import account_nbytes, room_between_steps
from vdnn.runtime.edition import Edition
from vdnn.runtime.executor import Executor
from vdnn.runtime.process_memory import give_back_garbage
from vdnn.runtime.step_memory import returned_memory
from vdnn.torch_private import without_modes
from vdnn.units import MiB, format_seconds

log = logging.getLogger("vdnn")

NUM_TIMED = 2
"""Steps that are timed before their times are believed."""

OFF_BY = 0.10
"""Share of what was believed by which steps may differ before the plan is made again."""

WORTH_A_CHANGE = 0.02
"""Share of the step time that a new plan must save to take over."""

LINK_FAR_OFF = 1.5
"""How many times slower, or faster, than believed a link must be for the plan to be made again at once."""

LINK_VERY_FAR_OFF = 3.0
"""How many times it must be for nobody to wait, though the plan was made for other links a few steps ago."""

MOST_RESTED = 64
"""Steps for which links are left alone at most, after the plan was made for them again and again."""

OBSERVED_NBYTES, OBSERVED_S = 1 * MiB, 5e-3
"""Copies of less, in less time, say little about a link."""

TRIALS_S = 4.0
"""How long ops are tried in other ways before the second step, if there are some left. Later the memory of a step is
kept between steps (`runtime/step_memory/`), and trials would come on top of it."""

MOST_CHANGES = 6
"""Plans that may take over because of what ops were seen to take: two that are alike could take turns for ever."""


class Replanner:
    """Of one executor. `before_step` is called by the thread that trains, everything else too but `_improve`."""

    def __init__(self, executor: Executor, form: FormProblem, session: Session, num_nodes: int) -> None:
        """`num_nodes`: of the step as it was traced."""
        assert form.trials is not None, "plans are improved where their ops were tried"
        self._executor = weakref.ref(executor)
        self._form, self._session, self._trials = form, session, form.trials
        self._problem, self._num_nodes = executor.plan.problem, num_nodes
        ops = zip(form.trials.keys, form.problem.graph.ops, strict=True)
        self._keys = [key if may_be_tried(op) else f"op {moment}" for moment, (key, op) in enumerate(ops)]
        self._factors: dict[str, float] = {}
        self._looked_at_links: tuple[ObservedLink, ...] = ()
        self._expected_s: float | None = None
        self._judged = JudgedFor(executor.plan.problem.hardware)
        self._has_new_variants = False
        self._may_try, self._num_changes = True, 0
        self._num_rests, self._rested = 1, 0
        self.num_planned = 0
        """How often a plan was made again."""

        self._lock = threading.Lock()
        self._others: Share = others_share()
        self._thread: threading.Thread | None = None
        self._found: tuple[Plan, Plan | None] | None = None

    def before_step(self) -> None:
        """Never waits: who comes while another thread is here goes on."""
        executor = self._executor()
        if executor is None or executor.measured.num_forward == 0 or not self._lock.acquire(blocking=False):
            return
        try:
            self._look(executor)
        finally:
            self._lock.release()

    def _look(self, executor: Executor) -> None:
        links = self._links_since()
        if self._thread is not None:
            if self._thread.is_alive():
                executor.times_next = self._expected_s is None
                return
            self._thread = None
            self._take_over(executor)
        self._leave_room_for_shapes(executor)
        self._try_variants()
        self._rested -= self._rested > 0
        if _is_late(executor) and self._are_worth_a_plan(links):
            log.info("%s: copies take other times than believed: planning again", self._name)
            self._num_rests = min(2 * self._num_rests, MOST_RESTED)
            self._rested = self._num_rests
            self._begin(executor, None, links)
        elif executor.measured.num_timed >= NUM_TIMED:
            self._learn(executor, links)
        elif self._expected_s is None:
            executor.times_next = True
        elif self._judged.has_drifted(last_s := _last_steps_s(executor)):
            for seconds in last_s:
                self._judged.note_step(seconds)
            self._expected_s = None
            executor.times_next = True

    def _leave_room_for_shapes(self, executor: Executor) -> None:
        """Shapes that were captured since are held in room that the plan may have counted on."""
        problem = self._session.with_all_shapes(executor.plan.problem, self._num_nodes)
        if problem is executor.plan.problem:
            return
        self._problem = problem
        if is_within_budget(executor.plan, problem):
            executor.edition.plan = replace(executor.plan, problem=problem)
            return
        self._session.memory.make_room()
        self._improve(executor.plan, is_background=False)
        self._take_over(executor)

    def _are_worth_a_plan(self, links: tuple[ObservedLink, ...]) -> bool:
        """Links scatter: after each plan for them they are left alone twice as long, unless they are very far off."""
        return self._judged.are_far_off(links, LINK_FAR_OFF if self._rested == 0 else LINK_VERY_FAR_OFF)

    def wait(self) -> None:
        """Until a plan that is being made is there. For tests and measurements."""
        if self._thread is not None:
            self._thread.join()

    @property
    def _name(self) -> str:
        return self._problem.graph.name

    def _try_variants(self) -> None:
        is_due, self._may_try = self._may_try and not self._trials.is_complete(), False
        if not is_due:
            return
        self._trials.room_nbytes = at_least_small(room_between_steps(self._problem), self._trials.where)
        self._session.memory.make_room()
        with without_modes(), returned_memory(self._trials.where):
            self._trials.try_variants(TRIALS_S)
        self._has_new_variants = True

    def _links_since(self) -> tuple[ObservedLink, ...]:
        """What copies took since the last look; nothing where too little was copied to say."""
        if not self._session.has_transfers():
            return ()
        now = self._session.observed_links()
        since, self._looked_at_links = observed_since(now, self._looked_at_links), now
        return tuple(link for link in since if link.nbytes >= OBSERVED_NBYTES or link.busy_s >= OBSERVED_S)

    def _learn(self, executor: Executor, links: tuple[ObservedLink, ...]) -> None:
        """Believe what the timed steps took; plan again if that is something else than what was believed."""
        seen = step_times(executor.plan, self._keys, executor.measured.timed)
        executor.measured.timed_steps.clear()
        executor.edition.forget_marked()
        give_back_garbage(len(self._problem.graph))
        self._expected_s = seen.step_s
        self._judged.note_step(seen.step_s)
        ratio = seen.step_s / max(executor.plan.step_time_s, 1e-9)
        log.info("%s: steps take %s, %.2f of what was planned", self._name, format_seconds(seen.step_s), ratio)
        is_off = seen.is_off_by > OFF_BY or abs(ratio - 1) > OFF_BY or self._has_more_room(executor.plan)
        if (self._has_new_variants or is_off) and self._num_changes < MOST_CHANGES:
            self._begin(executor, seen, links)

    def _begin(self, executor: Executor, seen: StepTimes | None, links: tuple[ObservedLink, ...]) -> None:
        """Plan in another thread, with what is known now."""
        codecs: Mapping[CodecCall, float] = {}
        if seen is not None:
            self._factors |= {key: self._factors.get(key, 1.0) * factor for key, factor in seen.factors.items()}
            self._trials.factors = dict(self._factors)
            codecs = seen.codec_factors
            self._remember()
        self._judged.note_links(links)
        hardware = as_observed(with_codec_factors(executor.plan.problem.hardware, codecs), links)
        self._problem = self._priced(executor.plan, hardware)
        self._has_new_variants = False
        self.num_planned += 1
        if self._fits_beside(executor.plan):
            self._thread = threading.Thread(target=self._improve, args=(executor.plan, True), name="vdnn-replan")
            self._thread.start()
        else:  # now, while nothing of a step is there
            self._session.memory.make_room()
            self._improve(executor.plan, is_background=False)
            self._take_over(executor)

    def _fits_beside(self, plan: Plan) -> bool:
        """Whether the budget has room for planning while a step runs."""
        budget_nbytes, around = self._problem.budget_nbytes, self._problem.surroundings
        if budget_nbytes is None or len(plan.problem.graph) < LARGE_STEP_OPS:
            return True
        return account_nbytes(plan, around) + PROCESS_NBYTES <= budget_nbytes

    def _priced(self, plan: Plan, hardware: Hardware) -> Problem:
        """The problem with the times that were seen. The ways in which the plan computes ops stay on offer."""
        first = self._form.problem
        offered = {
            moment: tuple(scaled(cost, self._factors.get(self._keys[moment])) for cost in costs)
            for moment, costs in {**first.variants, **self._trials.variants()}.items()
        }
        for moment, name in chosen_forms(plan).items():
            if name not in [cost.variant for cost in offered.get(moment, ())]:
                offered[moment] = _fastest_first((*offered.get(moment, ()), plan.costs[moment]))
        costs = with_factors(first.costs, self._keys, self._factors)
        around = plan.problem.surroundings
        if self._has_more_room(plan):
            around = replace(around, outside_nbytes=self._session.seen.outside_nbytes)
        return replace(plan.problem, costs=costs, variants=offered, hardware=hardware, surroundings=around)

    def _has_more_room(self, plan: Plan) -> bool:
        """Whether steps have shown much less outside of the model than the plan leaves room for."""
        left_nbytes, session = plan.problem.surroundings.outside_nbytes, self._session
        return session.memory.sees_outside and session.seen.outside_nbytes < left_nbytes * (1 - OFF_BY)

    def _improve(self, plan: Plan, is_background: bool) -> None:
        """In a thread of its own, or between two steps. Leaves the same plan with new prices, and another where that is
        better."""
        begin = perf_counter()
        repriced = better = replace(
            plan, problem=self._problem, variants=offered_again(chosen_forms(plan), self._problem)
        )
        try:
            with PlannerProcess(is_background=is_background) as planner:
                better = planner(Question(self._problem, self._session.planning.chosen_strategy, is_anew=True))
        except Infeasible as reason:
            log.info("%s: no other plan: %s", self._name, reason)
            if not is_within_budget(plan, self._problem):
                self._session.warn_of_shapes(self._name, reason)
        before_s, after_s = repriced.step_time_s, better.step_time_s
        words = "%s: planned again in %.1f s: %s a step, %s with the plan so far"
        log.info(words, self._name, perf_counter() - begin, format_seconds(after_s), format_seconds(before_s))
        is_better = after_s < before_s * (1 - WORTH_A_CHANGE)
        is_needed = better is not repriced and not is_within_budget(plan, self._problem)
        self._found = repriced, better if is_better or is_needed else None

    def _take_over(self, executor: Executor) -> None:
        if self._found is None:  # the thread failed, and said so
            return
        (repriced, better), self._found = self._found, None
        edition = None if better is None or not self._has_room(better) else self._edition(better)
        if edition is not None and executor.replace_edition(edition):
            self._expected_s, self._judged = None, JudgedFor(edition.plan.problem.hardware)
            self._num_changes += 1
            log.info("%s: another plan from this step on", self._name)
        else:
            executor.edition.plan = repriced
        give_back_garbage(len(self._problem.graph))

    def _edition(self, plan: Plan) -> Edition:
        """Cut now, while nothing of a step is there: cutting and generating take tens of MiB for a moment."""
        self._session.memory.make_room()
        return edition_for(self._form, plan, self._session)

    def _has_room(self, plan: Plan) -> bool:
        """Whether the disk has the room that the plan takes there, and a Budget that others have too still has it."""
        if not self._session.has_part_for(plan):
            return False
        try:
            self._session.disk_room.set_aside(plan)
        except TierFull as reason:
            log.info("%s: the plan so far stays: %s", self._name, reason)
            return False
        return True

    def _remember(self) -> None:
        """For other days, if nobody else had the cores while it was seen."""
        is_quiet, self._others = self._others() <= QUIET_SHARE, others_share()
        if is_quiet:
            known = dict(zip(self._keys, self._form.problem.costs.ops, strict=True))
            there = set(self._trials.keys) & set(self._factors)
            CostCache(where=str(self._form.lowered.where)).store_all(
                {key: scaled(known[key], self._factors[key]) for key in there}
            )


def is_within_budget(plan: Plan, problem: Problem) -> bool:
    """Whether the plan keeps the budget in the surroundings of `problem`."""
    return problem.budget_nbytes is None or account_nbytes(plan, problem.surroundings) <= problem.budget_nbytes


def _fastest_first(costs: Iterable[OpCost]) -> tuple[OpCost, ...]:
    return tuple(sorted(costs, key=lambda cost: cost.seconds))


def _is_late(executor: Executor) -> bool:
    """Whether the last step took much longer than its plan says: what copies take matters where they are waited for.
    Counting bytes takes time too, up to as much as the step."""
    last_s, is_first = executor.measured.last_s, not executor.measured.forward_s and not executor.measured.timed_steps
    return last_s is not None and last_s > executor.plan.step_time_s * (2 if is_first else 1 + OFF_BY)


def _last_steps_s(executor: Executor) -> list[float]:
    """What the last two steps took; nothing where there were fewer."""
    measured = executor.measured
    pairs = list(zip(measured.forward_s, measured.backward_s, strict=False))[-2:]
    return [sum(pair) for pair in pairs] if len(pairs) == 2 else []
