"""The tensor cache: eager training inside a budget, for models that no graph captures.

Enters: every tensor that autograd saves while the cache is open. Leaves: the same tensors when backward asks for them.
The one idea is that of SuperNeurons (PPoPP 2018, section 3.3.3): memory is a cache of what backward will need; storages
leave it only when it is really short.

Note [Watched steps]: to keep a budget one must know what is alive and what comes next. A watched step sees every op
(`op_watch.py`) and keeps the budget whatever the model does; that takes time per op. A model whose last watched steps
fitted without moving anything runs unwatched: then only what is saved is counted, in the hooks. As long as such a step
saves as many bytes as the step before it, tensor by tensor, it is taken to need what that needed. Where it does
otherwise, the bytes saved plus the most that was ever alive beside them is the estimate that the budget is held
against, and if that is too much, storages leave and the next step is watched again. So is every `WATCH_EVERY`th.

Note [Backward outside]: a backward that runs after the cache was left still goes through its hooks. PyTorch runs each
node of a graph with the modes that were active when backward was called, so a mode that a hook turns on lasts until the
end of its node. That way each op of a node that asks for something saved is watched, and the results of the others are
counted once an op of such a node reads them. `watch_backward_of` has every node of a graph turn it on.

Note [A share of the first step]: a budget may be a share of what a step takes with everything kept, which nobody knows
before one has run. In the first step the bound is that share of the most that would have been alive so far; it grows as
the step does, and is never more than it is at the end. What can leave leaves; what cannot is told after the step.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from fractions import Fraction
from types import TracebackType
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from vdnn.eager.cache_findings import Findings
from vdnn.eager.device_space import Space
from vdnn.eager.graph_nodes import before_each_node
from vdnn.eager.live_bytes import LiveBytes, is_plain
from vdnn.eager.op_needs import Needs, OpNeeds
from vdnn.eager.op_watch import Watch, is_watching
from vdnn.eager.policies import NEXT_USE, check_policy
from vdnn.eager.refusal_words import cannot_stay_within, out_of_memory_words, words_for_outside, words_for_share
from vdnn.eager.routine import Packed, Routine
from vdnn.eager.saved_items import Saved, Unmoved, is_leaf
from vdnn.eager.use_order import Follower
from vdnn.errors import BudgetExceeded, Infeasible
from vdnn.hardware.where import CPU
from vdnn.runtime.transfers.interface import Transfers
from vdnn.torch_private import is_in_backward, push_mode, without_torch_dispatch
from vdnn.units import Nbytes

MIN_MOVED_NBYTES = 4096  # a page, which is what disks move; torchtitan's offloading has the same bound
WATCHED_FIRST = 2  # the second step has the optimizer state and the gradients that the first one left
WATCH_EVERY = 64  # what changes around a model is noticed, for a sixty-fourth of what watching costs
COUNT_EVERY = 8  # of watched steps, and each of the first eight: optimizer state may appear after some


class _Here(threading.local):
    """What this thread has opened, and how deep it is in the cache's own work."""

    def __init__(self) -> None:
        self.opened: list[list[AbstractContextManager[Any]]] = []
        self.depth = 0

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, *error: object) -> None:
        self.depth -= 1


class TensorCache:
    """A context manager to be entered around each step, and again for the next: it remembers the order of the last."""

    def __init__(
        self,
        budget_nbytes: int,
        tiers: Sequence[str],
        transfers: Callable[[], Transfers],
        *,
        policy: str = NEXT_USE,
        encode: bool = True,
        over_budget: str = "raise",
        where: torch.device = CPU,
        share: Fraction | None = None,
        count: Callable[[LiveBytes], None] = LiveBytes.count_everything,
        watch_always: bool = False,
        refusal: Callable[[Infeasible], Infeasible] = lambda reason: reason,
        memory: AbstractContextManager[None] | None = None,
    ) -> None:
        """`share` stands for a `budget_nbytes` that the first step shows. `count` counts what is there before a step.
        `watch_always` has every step watched, whatever the ones before it did. `refusal` puts what
        cannot be into the words of somebody who has more to say. `memory`: what watched ops take theirs in."""
        self.memory: AbstractContextManager[Any] = nullcontext() if memory is None else memory
        self.policy, self._over_budget = check_policy(policy), over_budget
        self._live = LiveBytes(where)
        self._needs, self._peak_nbytes = OpNeeds(self._live.block_nbytes), 0
        self._space = Space(
            budget_nbytes, tiers, transfers, policy=policy, encode=encode, live=self._live, used=self._used_nbytes
        )
        self._share, self._is_learning, self.everything_nbytes = share, share is not None, 0
        self._count, self._watch_always, self._has_run_backward = count, watch_always, False
        self._others_peak_nbytes = self._live_before_nbytes = self._everything_before_nbytes = 0
        self._moves_before = 0
        self._num_open = 0
        self._is_watched = False
        self._has_warned, self._refusal = False, refusal
        self._lock = threading.RLock()
        self._here = _Here()
        self._routine = Routine(self._count_step, self._pack)

    @property
    def budget_nbytes(self) -> int:
        return self._space.budget_nbytes

    @budget_nbytes.setter
    def budget_nbytes(self, nbytes: int) -> None:
        self._space.budget_nbytes = nbytes

    @property
    def held_nbytes(self) -> int:
        """All that is alive, while something is saved for a backward that is to come; else 0."""
        return self._live.nbytes if self._space.tallies.alive.sum else 0

    @property
    def findings(self) -> Findings:
        """What it did so far."""
        findings = self._space.findings
        findings.peak_nbytes = max(findings.peak_nbytes, self._live.peak_nbytes, self._peak_nbytes)
        return findings

    def report(self) -> str:
        return self.findings.text(self.budget_nbytes, self.policy)

    def __enter__(self) -> TensorCache:
        with self._lock:
            if self._num_open == 0:
                self._end_learning()
                self._next_step(is_opening=True)
            self._num_open += 1
        opened: list[AbstractContextManager[Any]] = [
            torch.autograd.graph.saved_tensors_hooks(self._routine.save, self._unpack)
        ]
        if self._is_watched:
            opened.append(self._new_watch())
        for manager in opened:
            manager.__enter__()
        self._here.opened.append(opened)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._num_open -= 1
        for manager in reversed(self._here.opened.pop()):
            manager.__exit__(None, None, None)

    @property
    def is_busy_here(self) -> bool:
        return self._here.depth > 0

    def make_room(self, need: int, likely: int = 0) -> None:
        """For an op that is about to take `need` bytes, and `likely` so many more. Too little room for what is known is
        said, never passed over."""
        if self._is_learning:
            self._learn(need)
        if self._space.short_of(need + likely + self._space.kept_free_nbytes) > 0:
            with self._lock, self._here:
                self._space.make(need + likely)
                if self._space.short_of(need) > 0:
                    self._say_it_cannot(need)

    def free_all(self) -> None:
        """The device is full before the budget is: all that can leave leaves."""
        with self._lock, self._here:
            self._space.clear()

    def out_of_memory_words(self, op: str, needs: Needs, error: BaseException) -> str:
        return out_of_memory_words(op, needs, error, self._live, self.budget_nbytes)

    def watch_backward_of(self, outputs: Iterable[torch.Tensor]) -> list[RemovableHandle]:
        """Have every node behind `outputs` watched when backward runs it. Note [Backward outside]
        The handles are those of nodes that outlive their graph."""
        return before_each_node(outputs, self._before_node) if self._is_watched else []

    def leave_outside(self, seen_nbytes: int, expected_nbytes: int) -> None:
        """A forward is over: room for what runs before backward comes to its nodes, a loss say. What is only expected
        is never why the budget cannot be kept."""
        self._everything_before_nbytes = self._everything_nbytes
        if seen_nbytes:
            self.make_room(seen_nbytes)
        else:
            with self._lock, self._here:
                self._space.make(expected_nbytes)
        self._live_before_nbytes = self._live.nbytes

    def saw_outside(self, nbytes: int) -> None:
        """So much was taken there at once at most."""
        taken_nbytes = self._live_before_nbytes + nbytes
        self._peak_nbytes = max(self._peak_nbytes, taken_nbytes)
        if self._is_learning:
            self._learn_of(self._everything_before_nbytes + nbytes)
        elif taken_nbytes > self.budget_nbytes:
            self._warn(words_for_outside(self.budget_nbytes, taken_nbytes, nbytes))

    def _before_node(self, *_: Any) -> None:
        self._has_run_backward = True
        if self._is_watched and not is_watching() and is_in_backward():
            push_mode(self._new_watch())

    def _learn(self, need: int) -> None:
        """Note [A share of the first step]"""
        self._learn_of(self._everything_nbytes + need)

    def _learn_of(self, nbytes: int) -> None:
        assert self._share is not None
        self.everything_nbytes = max(self.everything_nbytes, nbytes)
        self._space.budget_nbytes = int(self._share * self.everything_nbytes)

    @property
    def _everything_nbytes(self) -> int:
        """What would be alive if nothing had left."""
        tallies = self._space.tallies
        return self._live.nbytes + tallies.saved.sum - tallies.resident.sum - self._space.passing_nbytes

    def _end_learning(self) -> None:
        if self._is_learning and self._has_run_backward:
            self._is_learning = False
            peak_nbytes = self.findings.peak_nbytes
            if peak_nbytes > self.budget_nbytes:
                self._say(words_for_share(self.budget_nbytes, self.everything_nbytes, peak_nbytes), 0)

    def note_peak(self, workspace_nbytes: int) -> None:
        """An op has run that took so much inside of itself."""
        nbytes = self._live.nbytes + workspace_nbytes
        self._peak_nbytes = max(self._peak_nbytes, nbytes)
        if self._is_learning and workspace_nbytes:
            self._learn(workspace_nbytes)
        others = nbytes - self._space.tallies.resident.sum
        if others > self._others_peak_nbytes:
            self._others_peak_nbytes = others

    def _pack(self, tensor: torch.Tensor) -> Packed:
        """Known by its storage, so that it can move."""
        with self._lock:
            self._take_over()
            return self._pack_known(tensor)

    def _pack_known(self, tensor: torch.Tensor) -> Packed:
        may_move = self._may_move(tensor)
        if may_move:
            self._next_step(is_opening=False)
        if self._is_watched:
            self._routine.write(tensor)
        if not may_move:
            with self._here:  # a subclass says itself how it is detached
                return Unmoved(tensor)
        with self._here, without_torch_dispatch():
            if self._space.follower.order.is_empty and self._routine.num_saved == 0:
                self._count_step()
            saved = self._space.item_of(tensor).save(tensor.detach())
        self._guard_unwatched()
        return saved

    def _take_over(self) -> None:
        """The step departs from the routine: from here on, what it has saved is known by storage."""
        if left_over := self._routine.hand_over():
            with self._here, without_torch_dispatch():
                for saved in left_over:
                    if self._may_move(saved.alias):
                        self._space.item_of(saved.alias).take_over(saved)

    def _unpack(self, packed: Packed) -> torch.Tensor:
        if packed.item is None and (held := packed.held()) is not None:
            return held
        assert isinstance(packed, Saved)
        with self._lock, self._here:
            tensor = self._bring(packed)
        if self._is_watched and not is_watching() and is_in_backward():
            push_mode(self._new_watch())  # Note [Backward outside]
        return tensor

    def _bring(self, saved: Saved) -> torch.Tensor:
        space, item = self._space, saved.item
        assert item is not None, "only what has an item can be away"
        with self.memory:
            space.bring(item)
        if self._is_watched and space.short_of(0) > 0:
            self._say_it_cannot(0)
        with without_torch_dispatch():
            tensor = saved.tensor()
        if item.step == space.step:
            space.follower.ask(item.ordinal)
            with self.memory:
                space.prefetch(item)
        return tensor

    def _may_move(self, tensor: torch.Tensor) -> bool:
        if is_leaf(tensor) or not is_plain(tensor) or tensor.device != self._live.where:
            return False
        if tensor.is_conj() or tensor.is_neg() or tensor.is_quantized:
            return False  # bits beside the memory that a layout does not carry
        return tensor.untyped_storage().nbytes() >= MIN_MOVED_NBYTES

    def _next_step(self, *, is_opening: bool) -> None:
        """A step ends when nothing is left of its graphs, or when the cache is opened again after a backward. One that
        saved nothing (an evaluation, say) leaves the known order alone."""
        order, is_over = self._space.follower.order, self._space.tallies.alive.sum == 0
        if not order.is_empty and (is_over or (is_opening and order.asked)):
            self._space.begin_step(Follower(order))
            self._routine.begin(is_watched=self._is_watched or not is_opening)
        if is_opening and self._space.follower.order.is_empty and self._routine.is_idle:
            self._choose_watching()
            self._routine.begin(is_watched=self._is_watched)

    def _choose_watching(self) -> None:
        """Note [Watched steps]"""
        findings, was_watched = self.findings, self._is_watched
        moves = findings.num_sent + findings.num_encoded
        num_steps, has_moved, self._moves_before = findings.num_steps, moves > self._moves_before, moves
        is_due = num_steps < WATCHED_FIRST or has_moved or num_steps % WATCH_EVERY == 0
        self._is_watched = is_due or self._watch_always
        if self._is_watched and (num_steps < COUNT_EVERY or num_steps % COUNT_EVERY == 0 or not was_watched):
            self._count(self._live)

    def _count_step(self) -> None:
        self._space.findings.num_steps += 1
        self._space.findings.num_watched += self._is_watched

    def _used_nbytes(self) -> int:
        if self._is_watched:
            return self._live.nbytes
        return self._others_peak_nbytes + self._space.tallies.resident.sum + self._space.passing_nbytes

    def _guard_unwatched(self) -> None:
        """Note [Watched steps]: an estimate, so it makes room as far as it can and leaves the verdict to the next
        step."""
        if not self._is_watched and not self._space.follower.follows and self._space.short_of(0) > 0:
            with self._lock, self._here:
                self._space.make(0)

    def _new_watch(self) -> Watch:
        return Watch(self, self._live, self._needs)

    def _say_it_cannot(self, need: int) -> None:
        if not self._is_learning:
            resident_nbytes = self._space.tallies.resident.sum
            words = cannot_stay_within(self.budget_nbytes, self._live.nbytes, resident_nbytes, need, self._space.full)
            self._say(words, self._live.nbytes + need)

    def _say(self, words: str, least_nbytes: int) -> None:
        if self._over_budget == "raise":
            reason = Infeasible(words, minimum_nbytes=Nbytes(max(least_nbytes, self.findings.peak_nbytes)))
            raise self._refusal(reason)
        self._warn(words)

    def _warn(self, words: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(words, BudgetExceeded, stacklevel=2)
