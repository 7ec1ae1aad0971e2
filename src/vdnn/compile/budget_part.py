"""A model's part of a Budget that it has together with others, and the plan that is made in it.

Enters: a session whose model is a member of a `vdnn.Budget`, and a function that plans a step. Leaves: a plan within
the model's part, or `Infeasible` in the words of the Budget. What is known of the model, the Budget hears from here
(`runtime/shared_budget.py`).
"""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from vdnn.compile.eager_fallback import EagerFallback, optimizer_state_nbytes
from vdnn.compile.traced_step import PlannedStep
from vdnn.errors import BudgetExceeded, Infeasible
from vdnn.options import Options
from vdnn.plan.model.surroundings import Surroundings
from vdnn.plan.plan import Plan
from vdnn.plan.shared.account import account_nbytes, persistent_nbytes, stash_nbytes
from vdnn.plan.shared.division import Standing
from vdnn.runtime.edition import Edition
from vdnn.runtime.executor import Executor
from vdnn.runtime.shared_budget import Budget, Member, Part
from vdnn.runtime.step_memory import StepMemory, UnplannedMemory
from vdnn.units import Nbytes, format_nbytes


@dataclass(frozen=True, slots=True)
class EditionBytes:
    """What the plan of an edition takes beside what is there all the time, what of it one step stashes, and what the
    interpreter holds for it."""

    takes_nbytes: int
    stash_nbytes: int
    interpreter_nbytes: int


class BudgetPart:
    """Of one model. `trained` has its parameters; it is None once the model is gone."""

    def __init__(
        self,
        budget: Budget,
        name: str,
        options: Options,
        trained: Callable[[], nn.Module | None],
        memory: StepMemory | UnplannedMemory,
        where: torch.device,
    ) -> None:
        self._name, self._options, self._trained = name, options, trained
        self._executors: weakref.WeakSet[Executor] = weakref.WeakSet()  # also those that only a backward needs
        self._current: list[weakref.ref[Executor]] = []
        self._known: dict[int, EditionBytes] = {}
        self._persistent: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._eager: weakref.WeakSet[EagerFallback] = weakref.WeakSet()
        itself = weakref.WeakMethod(self._standing)
        self.member: Member = budget.join(lambda: _called(itself()), memory, name, str(where))

    def called(self) -> AbstractContextManager[None]:
        """To be open while the model is called."""
        return self.member.called()

    def is_worth_another_plan(self) -> bool:
        return self.member.is_worth_another_plan()

    def begin_again(self) -> None:
        """What was captured is forgotten."""
        self._current.clear()
        self.member.forget_plans()

    def add(self, executor: Executor) -> None:
        with self.member.budget.lock:
            self._executors.add(executor)
            self._current.append(weakref.ref(executor))

    def plan_within(self, plan_within: Callable[[Options], PlannedStep], options: Options) -> PlannedStep:
        """What `plan_within` decides in this model's part. First in what others leave at this moment; if that is not
        enough, in the part that it has from the next step of all on."""
        part, own_nbytes = self.member.part(), None
        while True:
            nbytes = part.nbytes if own_nbytes is None else Nbytes(own_nbytes + part.room_nbytes)
            try:
                planned = plan_within(replace(options, budget=nbytes))
            except Infeasible as reason:
                part = self._larger_part(part, reason, own_nbytes)
                continue
            takes_nbytes = takes(planned.plan)
            if own_nbytes is None and takes_nbytes > part.room_nbytes:  # not all of its parameters are in the graph
                own_nbytes = own(planned.plan)
                continue
            kept_nbytes = planned.plan.problem.kept_nbytes or 0
            self.member.note_plan(part, max(kept_nbytes - persistent_nbytes(planned.plan), 0), takes_nbytes)
            return planned

    def _larger_part(self, part: Part, reason: Infeasible, own_nbytes: int | None) -> Part:
        """With what is known of it now; `Infeasible` where it is no larger."""
        self.member.note_refusal(reason, own_nbytes)
        gc.collect()  # members that are gone, and that nobody had collected yet, give their part back
        larger = self.member.part(for_now=False)
        if larger.room_nbytes <= part.room_nbytes:
            raise self.member.refusal(reason) from None
        if part.is_for_now:
            warnings.warn(
                f"{self._name} has no plan in what is left of {self.member.budget} while steps of others wait for their"
                f" backward ({format_nbytes(part.nbytes)}): for this once all together take more. Each is planned again"
                " in its part before its next step.",
                BudgetExceeded,
                stacklevel=2,
            )
        return larger

    def has_room_for(self, plan: Plan) -> bool:
        return self.member.has_room_for(takes(plan))

    def of_eager(self, fallback: EagerFallback) -> None:
        """The model runs as it is, in a tensor cache that asks for its bytes before each call."""
        with self.member.budget.lock:
            self._eager.add(fallback)

    def eager_nbytes(self) -> int:
        """What a tensor cache has from now on."""
        peaks = [fallback.peak_nbytes for fallback in self._eager]
        part = self.member.part()
        if any(peaks):
            kept_nbytes = max(max(peaks) - (part.nbytes - part.room_nbytes), 0)
            self.member.note_plan(part, kept_nbytes, part.room_nbytes)
            part = self.member.part()
        self.member.outside_nbytes = part.room_nbytes
        return part.nbytes

    def eager_refusal(self, reason: Infeasible) -> Infeasible:
        """Why it cannot run in its part, in the words of the Budget."""
        self.member.note_refusal(reason)
        return self.member.refusal(reason)

    def beside(self, found: Surroundings) -> Surroundings:
        """What was seen outside of a step, without what members that run in a tensor cache may have: theirs is given
        to them."""
        others = [member for member in self.member.budget.members() if member is not self.member]
        eager_nbytes = sum(member.outside_nbytes for member in others)
        return replace(found, outside_nbytes=max(found.outside_nbytes - eager_nbytes, 0))

    def _standing(self) -> Standing | None:
        trained = self._trained()
        if trained is None:
            return None
        current = [known for executor in self._alive() if (known := self._bytes_of(executor.edition))]
        held_nbytes = sum(
            self._bytes_of(step.edition).stash_nbytes for executor in list(self._executors) for step in executor.steps()
        )
        persistent = self._persistent_of(trained)
        persistent_nbytes, eager = sum(persistent.values()), list(self._eager)
        persistent[id(self)] = max((known.interpreter_nbytes for known in current), default=0)
        return Standing(
            self._name,
            persistent,
            planned_nbytes=max((known.takes_nbytes for known in current), default=0),
            held_nbytes=held_nbytes + sum(max(each.held_nbytes - persistent_nbytes, 0) for each in eager),
        )

    def _persistent_of(self, trained: nn.Module) -> dict[int, int]:
        """By tensor, with its gradient and what the optimizer keeps for it: the most that was seen, so that a parameter
        whose `requires_grad` is off for a while has its room meanwhile."""
        for tensor in (*trained.parameters(), *trained.buffers()):
            _, before = self._persistent.get(id(tensor), (None, 0))
            nbytes = max(before, tensor_nbytes(tensor, self._options.optimizer))
            self._persistent[id(tensor)] = weakref.ref(tensor), nbytes
        self._persistent = {key: found for key, found in self._persistent.items() if found[0]() is not None}
        return {key: nbytes for key, (_, nbytes) in self._persistent.items()}

    def _alive(self) -> Iterable[Executor]:
        return (executor for ref in self._current if (executor := ref()) is not None)

    def _bytes_of(self, edition: Edition) -> EditionBytes:
        """Known by the edition: a plan at other prices takes the same bytes."""
        known = self._known.get(edition.memory_key)
        if known is None:
            plan = edition.plan
            objects_nbytes = plan.problem.surroundings.interpreter_nbytes
            known = self._known[edition.memory_key] = EditionBytes(takes(plan), stash_nbytes(plan), objects_nbytes)
        return known


def takes(plan: Plan) -> int:
    """Of a plan: its account beside what is there all the time."""
    return max(account_nbytes(plan, plan.problem.surroundings) - own(plan), 0)


def own(plan: Plan) -> int:
    """What is there all the time of a plan's account."""
    return persistent_nbytes(plan) + plan.problem.surroundings.interpreter_nbytes


def tensor_nbytes(tensor: Tensor, optimizer: str | None) -> int:
    """A parameter or buffer, the gradient that it gets, and what the optimizer keeps for it."""
    nbytes = tensor.numel() * tensor.element_size()
    return 2 * nbytes + optimizer_state_nbytes(optimizer, tensor) if tensor.requires_grad else nbytes


def _called(standing: Callable[[], Standing | None] | None) -> Standing | None:
    return None if standing is None else standing()
