"""One budget for all that a model has alive at once: the step, other steps in flight, what runs outside, and what the
interpreter holds for it.

Enters: a plan of one step, and the surroundings in which it runs. Leaves: the bytes that all of it takes together, and
a plan with which they fit. The one idea: **a budget is given out once**. A step that waits for its backward holds its
stash, so each further step in flight adds what crosses from forward to backward; a loss that is computed outside of the
model is held beside one stash, between the two halves. The interpreter's objects are there all the time, so that they
come off the budget before anything is decided.

Known weakness: other steps count with their whole stash, also while their own backward frees it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from vdnn.errors import Infeasible
from vdnn.ir import Role
from vdnn.plan.judge.residency import holdings
from vdnn.plan.model.problem import Problem
from vdnn.plan.model.surroundings import ALONE, Surroundings
from vdnn.plan.model.timeline import ROW_OF_ROLE
from vdnn.plan.plan import Plan
from vdnn.plan.shared.infeasible import shares_of
from vdnn.units import format_nbytes

_DEVICE = 0  # the device is the first tier
_PERSISTENT = (Role.PARAMETER, Role.BUFFER, Role.OPTIMIZER_STATE)
_STASHED = tuple(ROW_OF_ROLE[role] for role in (Role.FEATURE_MAP, Role.OUTPUT, Role.INPUT))

_THERE_BEFORE = frozenset({*_PERSISTENT, Role.INPUT})

NUM_HALVINGS = 7
"""How closely the largest budget for one step is looked for: to a hundredth of what lies between least and most."""


def stash_nbytes(plan: Plan) -> int:
    """What a step holds on the device between its forward and its backward: feature maps, encodings, outputs, its
    batch."""
    graph, program = plan.problem.graph, plan.program
    num_forward = sum(instruction.moment < graph.num_forward for instruction in program)
    held = holdings(plan, program)
    rows = zip(held.tiers, held.roles, held.nbytes, held.first, held.last, strict=True)
    return sum(
        int(nbytes)
        for tier, role, nbytes, first, last in rows
        if tier == _DEVICE and role in _STASHED and first < num_forward <= last
    )


def account_nbytes(plan: Plan, around: Surroundings) -> int:
    """The peak of everything together."""
    further = 0
    if around.num_in_flight > 1:  # gradients of earlier backwards are there while the next ones are made
        further = (around.num_in_flight - 1) * stash_nbytes(plan) + _nbytes_of(plan, Role.GRADIENT)
    waiting = _nbytes_of(plan, *_PERSISTENT) + stash_nbytes(plan) + around.outside_nbytes
    return around.interpreter_nbytes + further + max(plan.peak_nbytes, waiting)


def persistent_nbytes(plan: Plan) -> int:
    """What is there all the time: parameters, buffers, optimizer state, and gradients between two steps too."""
    return _nbytes_of(plan, *_PERSISTENT, Role.GRADIENT)


def room_before_step(problem: Problem) -> int | None:
    """What the budget leaves beside what is there before the first step; None: nothing bounds it."""
    return _room_beside(problem, _THERE_BEFORE)


def room_between_steps(problem: Problem) -> int | None:
    """The same after a step: its gradients are there."""
    return _room_beside(problem, _THERE_BEFORE | {Role.GRADIENT})


def tensors_nbytes(problem: Problem) -> int:
    """What the budget has for tensors: all but what the interpreter holds. Nothing where there is no budget."""
    return max((problem.budget_nbytes or 0) - problem.surroundings.interpreter_nbytes, 0)


def _room_beside(problem: Problem, roles: frozenset[Role]) -> int | None:
    if problem.budget_nbytes is None:
        return None
    there = sum(storage.nbytes for storage in problem.graph.storages if storage.role in roles)
    return max(tensors_nbytes(problem) - there, 0)


def _nbytes_of(plan: Plan, *roles: Role) -> int:
    return sum(storage.nbytes for storage in plan.problem.graph.storages if storage.role in roles)


def planned_in_account(problem: Problem, decide: Callable[[Problem], Plan]) -> Plan:
    """What `decide` answers for a budget that leaves room for the problem's surroundings. The plan keeps the whole
    budget as its problem's: that is what the user named."""
    if problem.budget_nbytes is None or problem.surroundings == ALONE:
        return decide(problem)
    return replace(_largest_that_fits(problem.surroundings, problem, decide), problem=problem)


def _for_tensors(problem: Problem, budget_nbytes: int) -> Problem:
    """What a strategy is asked: one step, in what the interpreter leaves of the budget."""
    around = Surroundings(interpreter_nbytes=problem.surroundings.interpreter_nbytes)
    left_nbytes = max(budget_nbytes - around.interpreter_nbytes, 0)
    return replace(problem, budget_nbytes=left_nbytes, surroundings=around)


def _largest_that_fits(around: Surroundings, problem: Problem, decide: Callable[[Problem], Plan]) -> Plan:
    """Between the least that one step needs and all that is left, by halving: a smaller budget for one step has a
    smaller stash."""
    budget_nbytes = problem.budget_nbytes
    assert budget_nbytes is not None, "without a budget everything fits"
    most = budget_nbytes
    try:
        plan = decide(_for_tensors(problem, most))
        least = 0 if account_nbytes(plan, around) <= budget_nbytes else _least_nbytes(problem, decide)
    except Infeasible as reason:
        if around.num_in_flight == 1 and not around.outside_nbytes:
            raise
        least = reason.minimum_nbytes
    if not least:
        return plan
    best = decide(_for_tensors(problem, least))
    if account_nbytes(best, around) > budget_nbytes:
        raise _refusal(budget_nbytes, best, problem)
    for _ in range(NUM_HALVINGS):
        middle = (least + most) // 2
        plan = decide(_for_tensors(problem, middle))
        if account_nbytes(plan, around) <= budget_nbytes:
            best, least = plan, middle
        else:
            most = middle
    return best


def _least_nbytes(problem: Problem, decide: Callable[[Problem], Plan]) -> int:
    try:
        decide(_for_tensors(problem, 0))
    except Infeasible as reason:
        return reason.minimum_nbytes
    return 1  # even nothing is enough


def _refusal(budget_nbytes: int, smallest: Plan, problem: Problem) -> Infeasible:
    needed = account_nbytes(smallest, problem.surroundings)
    return Infeasible(
        f"no plan fits {format_nbytes(budget_nbytes)}: one step alone takes {format_nbytes(smallest.peak_nbytes)} at"
        f" least, and holds {format_nbytes(stash_nbytes(smallest))} from forward to backward."
        f" {_words(problem.surroundings)}\n"
        f"Raise budget to at least {format_nbytes(needed)} ({needed} bytes),"
        f" {shares_of(needed, budget_nbytes, problem)}, run fewer steps at once, or shrink the batch.",
        minimum_nbytes=needed,
    )


def _words(around: Surroundings) -> str:
    outside = f", and {format_nbytes(around.outside_nbytes)} outside of the model" if around.outside_nbytes else ""
    objects = f", {format_nbytes(around.interpreter_nbytes)} of the interpreter" if around.interpreter_nbytes else ""
    return f"The account is of {around.num_in_flight} steps in flight at once{outside}{objects}."
