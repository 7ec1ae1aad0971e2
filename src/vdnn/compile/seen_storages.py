"""What watched steps saw of storages that a trace has too small, and the plan that is made again for it.

Enters: watched steps, each with its plan. Leaves: for the next capture of the model the bytes that those storages
really take, and a warning where a step took more than its budget. The one idea: a plan stands on what the trace says
of storages; a kernel may take more for its result, a gradient may arrive as a part of something larger. One step shows
it, and the model is captured and planned again with that.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from vdnn.capture.lower import Lowered
from vdnn.errors import BudgetExceeded
from vdnn.ir import Graph
from vdnn.plan.model.surroundings import ALONE, Surroundings
from vdnn.plan.plan import Plan
from vdnn.plan.shared.account import account_nbytes
from vdnn.runtime.watched_step import WatchedStep
from vdnn.torch_private import is_graph_kept
from vdnn.units import MiB, format_nbytes

Seen = Mapping[tuple[str, int], int]
"""The bytes that a storage takes, by its name and the bytes it has in the trace."""

OUTSIDE_NBYTES, OUTSIDE_SHARE = 1 * MiB, 0.01
"""What runs outside of a model and takes less than both is not worth another plan."""

MAX_AGAIN = 3
"""How often a model is planned again for storages that no step before had shown."""


@dataclass
class SeenStorages:
    """Of one virtualized model. `is_stale` asks the front end to capture again before the next step."""

    nbytes: dict[tuple[str, int], int] = field(default_factory=dict)
    surroundings: Surroundings = ALONE
    is_stale: bool = False
    num_again: int = 0
    outside_nbytes: int = 0
    """The most that was outside of a step."""

    def judge(self, plan: Plan, step: WatchedStep) -> None:
        """Warn, and ask for another plan, if the step took more than its budget. One whose backward was interrupted and
        begun again says nothing of others: what the first left behind is still there."""
        budget_nbytes, timeline = plan.problem.budget_nbytes, step.timeline
        if budget_nbytes is None or timeline is None or step.num_backwards > 1 or timeline.peak_nbytes <= budget_nbytes:
            return
        larger = _named(plan.problem.graph, step.larger)
        is_new = any(self.nbytes.get(key, 0) < nbytes for key, nbytes in larger.items())
        self.nbytes |= larger
        self.is_stale = is_new and self.num_again < MAX_AGAIN
        at = timeline.labels[timeline.peak_at]
        words = _words(plan.problem.graph.name, timeline.peak_nbytes, budget_nbytes, at, larger)
        way_out = AGAIN if self.is_stale else KEPT if is_graph_kept() else TOO_LITTLE
        warnings.warn(f"{words} {way_out}", BudgetExceeded, stacklevel=2)

    def judge_surroundings(self, plan: Plan, found: Surroundings) -> None:
        """Warn, and ask for another plan, if more was alive beside the step than the plan has room for."""
        budget_nbytes, expected = plan.problem.budget_nbytes, plan.problem.surroundings
        if budget_nbytes is None:
            return
        self.outside_nbytes = max(self.outside_nbytes, found.outside_nbytes)
        if not is_worth_a_plan(found.outside_nbytes, budget_nbytes):
            found = replace(found, outside_nbytes=0)
        if expected.joined(found) == expected or self.surroundings.joined(found) == self.surroundings:
            return
        needed_nbytes = account_nbytes(plan, expected.joined(found))
        self.surroundings = self.surroundings.joined(found)
        if needed_nbytes <= budget_nbytes:
            return
        self.is_stale = self.num_again < MAX_AGAIN
        warnings.warn(_account_words(plan, found, needed_nbytes, budget_nbytes), BudgetExceeded, stacklevel=2)

    def judge_left(self, plan: Plan, num_left: int) -> None:
        """Warn if steps without a backward (a batch that was skipped, an exception) were alive while the next forward
        ran, and both are more than the budget. A plan for as many in flight would be one for an accident."""
        budget_nbytes, around = plan.problem.budget_nbytes, plan.problem.surroundings
        if budget_nbytes is None:
            return
        needed_nbytes = account_nbytes(plan, around.joined(Surroundings(1 + num_left)))
        if needed_nbytes > budget_nbytes:
            warnings.warn(_left_words(plan, num_left, needed_nbytes, budget_nbytes), BudgetExceeded, stacklevel=2)

    def begin_again(self) -> None:
        self.is_stale, self.num_again = False, self.num_again + 1


def is_worth_a_plan(outside_nbytes: int, budget_nbytes: int) -> bool:
    """Whether it matters to a plan that so much is held outside of the model."""
    return outside_nbytes >= max(OUTSIDE_NBYTES, budget_nbytes * OUTSIDE_SHARE)


AGAIN = "It is planned again with that before its next step."
KEPT = "backward(retain_graph=True) keeps what was saved for it. Call backward once, or raise the budget by that."
TOO_LITTLE = "Raise the budget by that, or hold less beside the model; `vdnn.report` has the bytes by role."


def _named(graph: Graph, larger: Mapping[int, int]) -> dict[tuple[str, int], int]:
    return {(graph.storages[k].name, graph.storages[k].nbytes): nbytes for k, nbytes in larger.items()}


def _words(name: str, peak_nbytes: int, budget_nbytes: int, at: str, larger: Mapping[tuple[str, int], int]) -> str:
    found = sorted(larger.items(), key=lambda item: item[0][1] - item[1])[:3]
    lines = "".join(
        f"\n    {storage} takes {format_nbytes(nbytes)}, {format_nbytes(traced_nbytes)} were planned"
        for (storage, traced_nbytes), nbytes in found
    )
    return (
        f"{name} took {format_nbytes(peak_nbytes)} ({peak_nbytes} bytes) at {at!r},"
        f" {peak_nbytes - budget_nbytes} bytes more than its budget of {format_nbytes(budget_nbytes)}."
        f"{lines}{chr(10) if lines else ''}"
    )


def _account_words(plan: Plan, found: Surroundings, needed_nbytes: int, budget_nbytes: int) -> str:
    beside = f"{found.num_in_flight} steps in flight at once" if found.num_in_flight > 1 else "the step"
    if found.outside_nbytes:
        beside += f" and {format_nbytes(found.outside_nbytes)} outside of the model"
    return (
        f"{plan.problem.graph.name}: {beside} take {format_nbytes(needed_nbytes)},"
        f" {format_nbytes(needed_nbytes - budget_nbytes)} more than the budget of {format_nbytes(budget_nbytes)}."
        " It is planned again for that before its next step; in_flight=k says from the first step on how many"
        " forwards come before their backwards."
    )


def _left_words(plan: Plan, num_left: int, needed_nbytes: int, budget_nbytes: int) -> str:
    steps = "1 step" if num_left == 1 else f"{num_left} steps"
    return (
        f"{plan.problem.graph.name}: {steps} before this one had no backward, and what was held for it was alive while"
        f" its forward ran: {format_nbytes(needed_nbytes)} together,"
        f" {format_nbytes(needed_nbytes - budget_nbytes)} more than the budget of {format_nbytes(budget_nbytes)}."
        " Where a batch is skipped, let its output and its loss go (del output, loss) before the next forward."
    )


def with_seen(lowered: Lowered, seen: Seen) -> Lowered:
    """The same step with storages as large as they were seen to be."""
    if not seen:
        return lowered
    storages = tuple(
        replace(storage, nbytes=max(storage.nbytes, seen.get((storage.name, storage.nbytes), 0)))
        for storage in lowered.graph.storages
    )
    return replace(lowered, graph=replace(lowered.graph, storages=storages))
