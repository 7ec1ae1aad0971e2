"""A model that cannot be captured, run as it is within the budget that was named.

Enters: a callable, the session with its budget, and why no graph could be had. Leaves: what the callable returns, its
backward prepared. The one idea: **nothing runs outside a budget that was named**. Forward runs in a tensor cache
(`eager/tensor_cache.py`), and each node of its graph is watched when backward comes to it, wherever that is called
from. What cannot leave and does not fit is `Infeasible`.

What counts: parameters, buffers and their gradients, the arguments of the call, what its ops make in forward and
backward, what runs between the two (a loss outside of the model: as much as is usual at first, then what was seen), and
what an optimizer keeps if the options name one. Not what others have in the same memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypedDict, Unpack

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from vdnn.eager.live_bytes import LiveBytes, is_plain
from vdnn.eager.tensor_cache import TensorCache
from vdnn.errors import Infeasible
from vdnn.hardware.where import CPU
from vdnn.options import Options
from vdnn.plan.model.budget import parse_share
from vdnn.plan.model.optimizer_state import STEP_NBYTES, optimizer_named
from vdnn.plan.model.surroundings import nbytes_of_a_loss
from vdnn.report.eager_part import EagerPart
from vdnn.runtime.shared_budget import Budget
from vdnn.runtime.step_memory import MappedMemory
from vdnn.runtime.transfers.interface import Transfers
from vdnn.torch_private import tree_leaves
from vdnn.units import Nbytes, parse_budget


class CacheOptions(TypedDict, total=False):
    """`part`: the bytes that the model has at this moment, asked for before each call, where that is not its whole
    budget; `refusal` says what cannot be in other words. `is_for_new_shapes`: only shapes that come for the first time
    run so, and what is found out in mid-step is told, not refused."""

    part: Callable[[], int]
    refusal: Callable[[Infeasible], Infeasible]
    is_for_new_shapes: bool


class EagerFallback:
    """Runs `plain`. `parts` are the modules whose tensors it trains."""

    def __init__(
        self,
        plain: Callable[..., Any],
        parts: Sequence[nn.Module],
        options: Options,
        transfers: Callable[[], Transfers],
        name: str,
        reason: str,
        *,
        where: torch.device = CPU,
        **how: Unpack[CacheOptions],
    ) -> None:
        part = how.get("part")
        budget = options.budget if part is None else Nbytes(part())
        assert budget is not None, "without a budget a model runs plain"
        assert not isinstance(budget, Budget), "a part of it is given"
        self._part = part
        self._plain, self._parts, self._reason, self._name = plain, parts, reason, name
        self._is_for_new_shapes = how.get("is_for_new_shapes", False)
        self._outside_nbytes, self._has_run_forward = 0, False
        self._given: tuple[Any, ...] = ()
        self._of_leaves: list[RemovableHandle] = []
        self._asked = str(budget)
        share = parse_share(budget)
        self._memory = MappedMemory(where)
        self._cache = TensorCache(
            0 if share is not None else parse_budget(budget),
            [tier.name for tier in options.machine.tiers[1:]],
            transfers,
            share=share,
            count=self._count,
            watch_always=True,
            over_budget="warn" if self._is_for_new_shapes else "raise",
            refusal=how.get("refusal", lambda reason: reason),
            where=where,
            memory=self._memory,
        )
        trained = {id(p): p for part in parts for p in part.parameters() if p.requires_grad}.values()
        self._state_nbytes = sum(optimizer_state_nbytes(options.optimizer, parameter) for parameter in trained)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._part is not None:
            self._cache.budget_nbytes = self._part()
        self._look_outside()
        self._given = tuple(_tensors((args, kwargs)))
        for handle in self._of_leaves:
            handle.remove()
        try:
            self._memory.begin_step()
            with self._cache:
                returned = self._plain(*args, **kwargs)
        finally:
            self._given = ()
        self._of_leaves = self._cache.watch_backward_of(_tensors(returned))
        self._leave_outside(returned)
        return returned

    def _leave_outside(self, returned: Any) -> None:
        """The part of a shape that comes for the first time has room for that already (`new_shapes.py`)."""
        if not self._is_for_new_shapes:
            sizes = {id(one): (one.numel(), one.element_size()) for one in _tensors(returned) if one.requires_grad}
            self._cache.leave_outside(self._outside_nbytes, nbytes_of_a_loss(list(sizes.values())))
            self._has_run_forward = True
            self._memory.begin_between()

    def _look_outside(self) -> None:
        """What ran between the last forward and its backward."""
        if self._has_run_forward:
            nbytes = self._memory.taken_between()
            self._outside_nbytes, self._has_run_forward = max(self._outside_nbytes, nbytes), False
            self._cache.saw_outside(nbytes)

    @property
    def peak_nbytes(self) -> int:
        """The most that it had so far."""
        return self._cache.findings.peak_nbytes

    @property
    def held_nbytes(self) -> int:
        """What it has now, if a backward is to come; else 0."""
        return self._cache.held_nbytes

    def part(self) -> EagerPart:
        """What it did so far."""
        if not self._memory.is_between:
            self._look_outside()
        found = self._cache.findings
        return EagerPart(
            name=self._name,
            reason=self._reason,
            is_for_new_shapes=self._is_for_new_shapes,
            budget=self._asked,
            budget_nbytes=self._cache.budget_nbytes,
            everything_nbytes=self._cache.everything_nbytes or None,
            peak_nbytes=found.peak_nbytes,
            num_steps=found.num_steps,
            sent_nbytes=found.sent_nbytes,
            fetched_nbytes=found.fetched_nbytes,
            num_encoded=found.num_encoded,
            stall_s=found.stall_s,
        )

    def _count(self, live: LiveBytes) -> None:
        """What is there before a step."""
        live.count_unseen(self._state_nbytes)
        self._state_nbytes = 0
        state = [tensor for part in self._parts for tensor in (*part.parameters(), *part.buffers())]
        gradients = [tensor.grad for tensor in state if tensor.grad is not None]
        for tensor in (*state, *gradients, *self._given):
            if is_plain(tensor):
                live.count(tensor)


def _tensors(things: Any) -> Iterator[torch.Tensor]:
    leaves: Iterable[Any] = tree_leaves(things)
    return (leaf for leaf in leaves if isinstance(leaf, torch.Tensor))


def optimizer_state_nbytes(optimizer: str | None, parameter: torch.Tensor) -> int:
    """What the optimizer keeps for a parameter that is trained."""
    kind = optimizer_named(optimizer)
    if kind is None:
        return 0
    return len(kind.copies) * parameter.numel() * parameter.element_size() + STEP_NBYTES * kind.counts_steps
