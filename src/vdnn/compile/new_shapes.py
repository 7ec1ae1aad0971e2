"""Shapes that a model has not met before: they train at once, as they are, in a tensor cache within the budget.

Enters: the arguments of each call. Leaves: what runs the call in a tensor cache, or nothing: then it is captured. The
one idea: **a shape earns its capture by coming back**. To capture and plan a shape takes as long as many steps of it,
and a smaller last batch, or sentences of many lengths, may never come again. The first shape of a model is captured at
once; a further one is when it is met for the second time. So is one for which the cache may have too little room, and
one that comes while other steps wait for their backward.

A shape that has no plan beside all that the interpreter holds for others, and one that comes after as many as a model
may have, stay in the cache.
"""

from __future__ import annotations

import logging
import warnings
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import torch
from torch import nn

from vdnn.compile.eager_fallback import EagerFallback
from vdnn.compile.session import Session
from vdnn.errors import BudgetExceeded, Infeasible
from vdnn.plan.model.bounds import largest_eager_op_nbytes
from vdnn.plan.model.budget import parse_share
from vdnn.plan.plan import Plan
from vdnn.plan.shared.account import persistent_nbytes, tensors_nbytes
from vdnn.torch_private import tree_leaves
from vdnn.units import format_nbytes

log = logging.getLogger("vdnn")

WHY = "a shape that comes for the first time is not captured; it is when it comes back"

MAX_MET = 4096
"""Shapes that are remembered. Past them the oldest are met for the first time again."""

NUM_IMAGE_DIMS = 4
"""Of a batch of images. Batches of sequences have fewer."""

EAGER_TIMES = 1.5
"""How many times the largest op an eager step may hold beside what is there all the time: what Python's variables hold,
too. Of six networks of the zoo 0.02 to 1.23 times, of a chain of small layers 1.36."""

Shapes = tuple[tuple[tuple[int, ...], torch.dtype], ...]
"""Of the tensors of a call."""


class NewShapes:
    """Of one model. `parts` are the modules whose tensors it trains."""

    def __init__(self, session: Session, plain: Callable[..., Any], parts: Sequence[nn.Module]) -> None:
        self._session, self._plain, self._parts = session, plain, parts
        self._met: dict[Shapes, bool] = {}  # whether it stays in the cache
        self._cache: EagerFallback | None = None
        self._nbytes = 0
        self._asked: Shapes = ()
        self._captured: tuple[int, Shapes] = 0, ()  # how many captures there are, and what the last one is of

    def runner(self, args: Any, kwargs: Any) -> EagerFallback | None:
        """What runs a call that is not to be captured."""
        session, shapes = self._session, _shapes_of((args, kwargs))
        if len(session.executors) != self._captured[0]:
            self._captured = len(session.executors), self._asked
        is_new, stays = shapes not in self._met, self._met.get(shapes, False)
        self._note(shapes, stays)
        session.may_run_uncaptured = shapes != self._captured[1] and self._may_run(shapes)
        if session.may_run_uncaptured and (is_new or stays or session.has_all_captures()):
            return self._opened()
        self._asked = shapes
        self._warn_if_both_are_held()
        return None

    def instead_of_capture(self, reason: Infeasible) -> EagerFallback | None:
        """What runs a shape that has no plan; None where the cache has no room for it either."""
        if not self._session.may_run_uncaptured:
            return None
        log.info("%s: a shape stays in the tensor cache: %s", self._session.name, reason)
        self._note(self._asked, stays=True)
        return self._opened()

    def _note(self, shapes: Shapes, stays: bool) -> None:
        self._met[shapes] = stays
        if len(self._met) > MAX_MET:
            self._met.pop(next(iter(self._met)))

    def _may_run(self, shapes: Shapes) -> bool:
        """Whether such a call surely fits. Notes what it may take."""
        session, growth = self._session, _growth(shapes, self._captured[1])
        is_possible = session.captures_what_comes_back and growth is not None
        if not is_possible or not session.executors or any(executor.steps() for executor in session.executors):
            return False
        assert growth is not None
        plan = session.executors[-1].plan
        workspace_nbytes = max((cost.workspace_nbytes for cost in plan.problem.costs.ops), default=0)
        self._nbytes = self._room_nbytes(plan, growth.of_maps) - int(workspace_nbytes * growth.of_ops)
        least_nbytes = persistent_nbytes(plan) + EAGER_TIMES * growth.of_ops * largest_eager_op_nbytes(
            plan.problem.graph
        )
        return least_nbytes <= self._nbytes

    def _room_nbytes(self, plan: Plan, growth: float) -> int:
        """What the budget leaves for the tensors of a step. Of a share: for so many times the maps."""
        problem, around = plan.problem, plan.problem.surroundings
        outside_nbytes = int(max(around.outside_nbytes, around.expected_nbytes) * growth)
        share = parse_share(self._session.options.amount)
        if share is None or problem.kept_nbytes is None:
            return tensors_nbytes(problem) - outside_nbytes
        held_nbytes = persistent_nbytes(plan)
        share_nbytes = int(share * (held_nbytes + (problem.kept_nbytes - held_nbytes) * growth))
        return max(share_nbytes, self._session.granted_nbytes) - outside_nbytes

    def _opened(self) -> EagerFallback:
        """Beside an arena whose idle pages went back."""
        session = self._session
        if self._cache is None:
            weakly = weakref.ref(self)
            part = partial(_nbytes_of, weakly)
            self._cache = session.open_cache(self._plain, self._parts, WHY, part=part, is_for_new_shapes=True)
        session.memory.make_room()
        log.info("%s: %s; it runs within %s", session.name, WHY, format_nbytes(self._nbytes))
        return self._cache

    def _warn_if_both_are_held(self) -> None:
        """A step that was planned alone begins while one in the cache waits for its backward."""
        held_nbytes = 0 if self._cache is None else self._cache.held_nbytes
        if held_nbytes:
            warnings.warn(
                f"{self._session.name} begins a step while one of a shape that came for the first time waits for its"
                f" backward, with {format_nbytes(held_nbytes)} alive: for this once both together may take more than"
                f" {self._session.options.budget}. The shape is captured when it comes back, and counts then.",
                BudgetExceeded,
                stacklevel=2,
            )


def _nbytes_of(shapes: weakref.ref[NewShapes]) -> int:
    alive = shapes()
    return 0 if alive is None else alive._nbytes


def _shapes_of(given: Any) -> Shapes:
    tensors = (leaf for leaf in tree_leaves(given) if isinstance(leaf, torch.Tensor))
    return tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors)


@dataclass(frozen=True, slots=True)
class _Growth:
    """How many times as large feature maps are, and the largest op: never less than once."""

    of_maps: float
    of_ops: float


def _growth(shapes: Shapes, before: Shapes) -> _Growth | None:
    """Of one call over another; None where they are of different kinds. With more samples, or larger images, everything
    grows alike; what attention makes of longer sequences grows with the square."""
    if [(len(shape), dtype) for shape, dtype in shapes] != [(len(shape), dtype) for shape, dtype in before]:
        return None
    times, is_longer = 1.0, False
    for (new, _), (old, _) in zip(shapes, before, strict=True):
        times = max(times, prod(new) / max(prod(old), 1))
        is_longer |= len(new) < NUM_IMAGE_DIMS and new[1:] != old[1:]
    return _Growth(times, times**2 if is_longer else times)
