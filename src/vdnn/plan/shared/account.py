"""One budget for all that a model has alive at once: the step, other steps in flight, what runs outside, and what the
interpreter holds for it.

Enters: a plan of one step, and the surroundings in which it runs. Leaves: the bytes that all of it takes together, and
a plan with which they fit. The one idea: **a budget is given out once**. A step that waits for its backward holds its
stash, so each further step in flight adds what crosses from forward to backward; a loss that is computed outside of the
model is held beside one stash, between the two halves. The interpreter's objects are there all the time, so that they
come off the budget before anything is decided.

Note: [A loss that nobody has seen]
What a loss outside takes shows in the first step, and a plan that fills the budget has no room for it then. So the
first plan leaves what such losses take (`expected_nbytes`), or as much of it as the smallest plan leaves. It is never
why a plan is refused, and always in the budget that a refusal names. When the step has shown less, the plan is made
again with that (`compile/replanning.py`).

Note: [An arena of whole blocks]
On an accelerator a step lies in an arena that is reserved all the time, larger than what is alive in it by what packing
whole blocks wastes; and what the caller gets lies outside, reserved too. So its account is what both take, and a plan
that is too large for the budget so is made again with that much less.

Known weakness: other steps count with their whole stash, also while their own backward frees it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from vdnn.errors import Infeasible
from vdnn.ir import Role
from vdnn.plan.addresses.step_arena import step_arena
from vdnn.plan.judge.residency import holdings
from vdnn.plan.model.budget import Asked
from vdnn.plan.model.problem import Problem
from vdnn.plan.model.surroundings import ACCELERATOR_BLOCK_NBYTES, ALONE, Surroundings
from vdnn.plan.model.timeline import ROW_OF_ROLE
from vdnn.plan.plan import Plan
from vdnn.plan.shared.infeasible import asked_of, enough, infeasible
from vdnn.units import Nbytes, format_nbytes

_DEVICE = 0  # the device is the first tier
_PERSISTENT = (Role.PARAMETER, Role.BUFFER, Role.OPTIMIZER_STATE)
_STASHED = tuple(ROW_OF_ROLE[role] for role in (Role.FEATURE_MAP, Role.OUTPUT, Role.INPUT))

_THERE_BEFORE = frozenset({*_PERSISTENT, Role.INPUT})

NUM_HALVINGS = 7
"""How closely the largest budget for one step is looked for: to a hundredth of what lies between least and most."""

NUM_HALVINGS_ARENA = 4
"""The same for an arena, which is packed anew for every plan. The first try takes off what was too much."""

NUM_HALVINGS_UNSEEN = 3
"""The same for a loss that nobody has seen: that plan may not be the last. Where nothing is left over beside such a
loss, the smallest plan is the one."""


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
    """The peak of everything together, but for what is only expected. Note: [An arena of whole blocks]"""
    if around.in_arena:
        further = (around.num_in_flight - 1) * stash_nbytes(plan)
        return around.interpreter_nbytes + further + step_arena(plan).reserved_nbytes + around.outside_nbytes
    beside, waiting = _beside_and_waiting(plan, around)
    return beside + max(plan.peak_nbytes, waiting + around.outside_nbytes)


def _beside_and_waiting(plan: Plan, around: Surroundings) -> tuple[int, int]:
    """What is there beside the step, and what the step holds while it waits for its backward."""
    further = 0
    if around.num_in_flight > 1:  # gradients of earlier backwards are there while the next ones are made
        further = (around.num_in_flight - 1) * stash_nbytes(plan) + _nbytes_of(plan, Role.GRADIENT)
    return around.interpreter_nbytes + further, _nbytes_of(plan, *_PERSISTENT) + stash_nbytes(plan)


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
    budget as its problem's: that is what the user named. Its surroundings are those that it has room for."""
    around, budget_nbytes = problem.surroundings, problem.budget_nbytes
    if budget_nbytes is None or around.as_expected == ALONE:
        return decide(replace(problem, surroundings=around.as_seen))
    problem = replace(problem, asked=asked_of(replace(problem, surroundings=ALONE)))
    plan, around = _largest_that_fits(budget_nbytes, problem, decide)
    return replace(plan, problem=replace(problem, surroundings=around))


def _for_tensors(problem: Problem, budget_nbytes: int) -> Problem:
    """What a strategy is asked: one step, in what the interpreter leaves of the budget."""
    around = Surroundings(interpreter_nbytes=problem.surroundings.interpreter_nbytes)
    left_nbytes = max(budget_nbytes - around.interpreter_nbytes, 0)
    return replace(problem, budget_nbytes=left_nbytes, surroundings=around)


def _largest_that_fits(
    budget_nbytes: int, problem: Problem, decide: Callable[[Problem], Plan]
) -> tuple[Plan, Surroundings]:
    """Between the least that one step needs and all that is left, by halving: a smaller budget for one step has a
    smaller stash. Also the surroundings that there is room for. Note: [A loss that nobody has seen]"""
    around, most = problem.surroundings, budget_nbytes
    try:
        plan = decide(_for_tensors(problem, most))
    except Infeasible as reason:
        if around.num_in_flight == 1 and not around.as_expected.outside_nbytes and not around.in_arena:
            raise
        least = _least_nbytes(problem, decide) if around.in_arena else reason.minimum_nbytes
        raise _refusal(decide(_for_tensors(problem, least)), problem, reason.way_out) from None
    too_much = account_nbytes(plan, around.as_expected) - budget_nbytes
    if too_much <= 0:
        return plan, around.as_seen
    least = _least_nbytes(problem, decide)
    best = decide(_for_tensors(problem, least))
    if account_nbytes(best, around) > budget_nbytes:
        raise _refusal(best, problem)
    if around.in_arena:
        room_nbytes = budget_nbytes - account_nbytes(best, replace(around, outside_nbytes=0))
    else:
        room_nbytes = budget_nbytes - sum(_beside_and_waiting(best, around))
    left = replace(around.as_seen, outside_nbytes=min(around.as_expected.outside_nbytes, room_nbytes))
    is_seen = around.as_expected == around
    num_halvings = NUM_HALVINGS if is_seen else NUM_HALVINGS_UNSEEN * (room_nbytes > left.outside_nbytes)
    for number in range(NUM_HALVINGS_ARENA if around.in_arena else num_halvings):
        is_guessed = around.in_arena and number == 0 and least < most - too_much
        middle = most - too_much if is_guessed else (least + most) // 2
        plan = decide(_for_tensors(problem, middle))
        if account_nbytes(plan, left) <= budget_nbytes:
            best, least = plan, middle
        else:
            most = middle
    return best, left


def _least_nbytes(problem: Problem, decide: Callable[[Problem], Plan]) -> int:
    try:
        decide(_for_tensors(problem, 0))
    except Infeasible as reason:
        if problem.surroundings.in_arena:  # of whole blocks: less than one decides nothing
            return -(-reason.minimum_nbytes // ACCELERATOR_BLOCK_NBYTES) * ACCELERATOR_BLOCK_NBYTES
        return reason.minimum_nbytes
    return 1  # even nothing is enough


def _refusal(smallest: Plan, problem: Problem, way_out: str = "") -> Infeasible:
    """`way_out`: where one step alone is too much, what its strategy says."""
    around = problem.surroundings.as_expected
    needed = account_nbytes(smallest, around)
    stash = f"holds {format_nbytes(stash_nbytes(smallest))} from forward to backward"
    if way_out:
        words = f"One step {stash}. {_words(problem.surroundings, asked_of(problem))}"
        way_out = f"run fewer steps at once, or {way_out}" if around.num_in_flight > 1 else way_out
        asked = replace(smallest, problem=replace(problem, surroundings=around))
        return infeasible(asked, way_out, account_nbytes=needed, account=words)
    return Infeasible(
        f"no plan fits {asked_of(problem)}: one step alone takes {format_nbytes(smallest.peak_nbytes)} at"
        f" least, and {stash}. {_words(problem.surroundings, asked_of(problem))}\n"
        f"Raise budget to at least {enough(needed, problem)}, run fewer steps at once, or shrink the batch.",
        minimum_nbytes=Nbytes(needed),
    )


def _words(around: Surroundings, asked: Asked) -> str:
    outside = f", and {format_nbytes(around.outside_nbytes)} outside of the model" if around.outside_nbytes else ""
    if around.expected_nbytes > around.outside_nbytes:
        expected = format_nbytes(around.expected_nbytes)
        outside = f", and {expected} for a loss outside of the model, as cross_entropy of its outputs takes"
    objects = f", {format_nbytes(around.interpreter_nbytes)} of the interpreter" if around.interpreter_nbytes else ""
    steps = "1 step" if around.num_in_flight == 1 else f"{around.num_in_flight} steps in flight at once"
    arena = " in an arena of whole blocks" if around.in_arena else ""
    alone = "; a share is one of the steps without it" if asked.share is not None and around.expected_nbytes else ""
    return f"The account is of {steps}{arena}{outside}{objects}{alone}."
