"""Everything one virtualized model has run: its captured graphs, in the order in which they were first met.

Enters: executors as they are compiled. Leaves: a `Report`, predicted beside measured.
"""

from __future__ import annotations

import logging
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import median
from typing import Any, Unpack

import torch
from torch import nn

from vdnn.capture.eager_kernels import OtherBits
from vdnn.capture.ops.nondeterministic import nondeterministic
from vdnn.compile.budget_part import BudgetPart
from vdnn.compile.device_room import DeviceRoom
from vdnn.compile.disk_room import DiskRoom
from vdnn.compile.eager_fallback import CacheOptions, EagerFallback
from vdnn.compile.seen_storages import SeenStorages
from vdnn.compile.traced_step import Precedent
from vdnn.errors import (
    BudgetExceeded,
    CaptureFailed,
    InexactTrace,
    Infeasible,
    InvalidInput,
    OtherLastBits,
    Unsupported,
)
from vdnn.hardware.device import THIS_MACHINE
from vdnn.hardware.observed_links import ObservedLink
from vdnn.hardware.where import CPU, where_of
from vdnn.options import Options
from vdnn.plan.model.budget import parse_share
from vdnn.plan.model.findings import Density, GradientError
from vdnn.plan.model.problem import Problem
from vdnn.plan.model.surroundings import Surroundings, interpreter_nbytes
from vdnn.plan.plan import Plan
from vdnn.plan.shared.workspaces import inexact_ops
from vdnn.report.pieces import Piece, TimelineSummary, summarize
from vdnn.report.process_part import ArenaPart, DevicePart, ProcessPart
from vdnn.report.record import Report
from vdnn.runtime.executor import Executor
from vdnn.runtime.open_transfers import AskedTiers
from vdnn.runtime.process_memory import resident
from vdnn.runtime.runtime import SharedTiers, shared_runtime
from vdnn.runtime.shared_budget import Budget
from vdnn.runtime.step_memory import (
    MemoryCounts,
    StepMemory,
    UnplannedMemory,
    begin_step_library,
    open_step_memory,
)
from vdnn.runtime.tiers.host import HostStore
from vdnn.runtime.transfers.interface import Transfers
from vdnn.units import format_nbytes

log = logging.getLogger("vdnn")

TENSOR_CACHE = "tensor-cache"
"""What a report calls the strategy of a model that could not be captured."""

MAX_CAPTURES = 128
"""Past so many signatures the shapes are not a few batch sizes but a stream, and every step would be a capture."""


@dataclass
class Session:
    """One per virtualized model."""

    name: str
    options: Options
    executors: list[Executor] = field(default_factory=list)
    seen: SeenStorages = field(default_factory=SeenStorages)
    eager: Callable[[], EagerFallback | None] = lambda: None
    """What runs the model where no graph of it can be had; weakly, for it holds the model."""

    trained: Callable[[], nn.Module | None] = lambda: None
    """What has the parameters; weakly."""

    precedent: Precedent | None = None
    """What was decided for the shape before."""

    granted_nbytes: int = 0
    """The most that a budget was at one of the shapes so far, for tensors. A share is never less again."""

    num_nodes: int = 0
    """Of the traces of all shapes that are captured: the interpreter holds objects for each."""
    where: torch.device = CPU
    """Where its steps compute: at first where the model's tensors are, then where a captured graph takes its inputs."""

    may_run_uncaptured: bool = False
    """Whether the call that is about to be captured could also run as it is (`new_shapes.py`)."""

    verified: list[str] = field(default_factory=list)
    """What was found of first steps that were to be verified (`first_steps.py`)."""

    may_have_other_bits: bool = False
    """Whether a trace whose last bits are not eager's may train: where nothing else would, and it is measured."""

    other_bits: dict[str, tuple[OtherBits, ...]] = field(default_factory=dict)
    """By captured graph, its ops whose last bits are not eager's."""

    asked: Any = None
    """What the user passed, where a session is found again by it (`compile/backend.py`)."""

    def __post_init__(self) -> None:
        self._given, self.where = self.options, self._where_it_is()
        self.part: BudgetPart | None = None
        self._settle()
        self._began_with = resident()
        if isinstance(self.options.budget, Budget):
            self.part = BudgetPart(self.options.budget, self.name, self.options, self.trained, self.memory, self.where)

    def _where_it_is(self) -> torch.device:
        """By what it trains, as far as that is known."""
        trained = self.trained()
        return CPU if trained is None else where_of((*trained.named_parameters(), *trained.named_buffers()))

    def compute_on(self, where: torch.device) -> None:
        """The next step computes there. What was decided for another device says nothing of this one."""
        if where == self.where:
            return
        if self.part is not None:
            raise InvalidInput(
                f"{self.name} was on {self.where} when it joined {self.options.budget}, and computes on {where} now."
                " Virtualize it where it trains."
            )
        self.where, self.precedent, self.granted_nbytes = where, None, 0
        self.__dict__.pop("memory", None)
        self._settle()

    def _settle(self) -> None:
        """The machine behind that device, its tiers and what steps run in."""
        begin_step_library()
        known = self.options = self._given.on_known_machine(runs=True, where=str(self.where))
        self._tiers = SharedTiers(shared_runtime(), self._asked_tiers())
        self.disk_room, self.device_room = DiskRoom(self._tiers), DeviceRoom(self.where)
        log.debug("%s computes on %s, which is %s", self.name, self.where, known.machine.name)

    def _asked_tiers(self) -> AskedTiers:
        known = self.options
        return AskedTiers.of(known.machine, known.spill_dir, self.where, verify_spills=known.verify_spills)

    @cached_property
    def memory(self) -> StepMemory | UnplannedMemory:
        """What this model's steps run in. Whoever asks first waits until there is the library."""
        return open_step_memory(self.where, within_budget=self.options.budget is not None)

    @property
    def planning(self) -> Options:
        """What its steps are planned with: as asked, but for what the device has room for where nothing was named."""
        return self.device_room.options(self.options)

    @property
    def is_bound(self) -> bool:
        """Whether a budget was named, by itself or with a plan: then nothing may run outside of it."""
        return self.options.budget is not None or self.options.plan is not None

    def fall_back(self, plain: Callable[..., Any], parts: Sequence[nn.Module], why: Exception) -> EagerFallback:
        """What runs the model from now on: as it is, within its budget."""
        if self.options.plan is not None:
            raise CaptureFailed(
                f"{self.name} cannot follow the plan that was given, which is one of a graph: {_first_line(why)}\n"
                "Leave out plan= and name a budget: what cannot be captured then trains within it in a tensor cache."
            ) from why
        reason, part = _first_line(why), self.part
        log.warning("%s runs as it is, in a tensor cache within %s: %s", self.name, self.options.budget, reason)
        if part is None:
            return self.open_cache(plain, parts, reason)
        fallback = self.open_cache(plain, parts, reason, part=part.eager_nbytes, refusal=part.eager_refusal)
        part.of_eager(fallback)
        return fallback

    def open_cache(
        self, plain: Callable[..., Any], parts: Sequence[nn.Module], reason: str, **how: Unpack[CacheOptions]
    ) -> EagerFallback:
        """What runs the model as it is, and is in the report from now on."""
        tiers = SharedTiers(shared_runtime(), self._asked_tiers())
        opened = EagerFallback(plain, parts, self.options, tiers, self.name, reason, where=self.where, **how)
        self.eager = weakref.ref(opened)
        return opened

    @property
    def captures_what_comes_back(self) -> bool:
        """Whether a further shape is captured when it comes for the second time: where steps begin at once and become
        better, and a step at a time is alive."""
        begins_at_once = self.options.replan and self.options.chosen_costs == "tried" and self.options.plan is None
        is_alone = self.part is None and self.options.in_flight == 1
        return self.is_bound and begins_at_once and is_alone and self.options.compiler == "eager"

    def has_all_captures(self) -> bool:
        """Whether it was captured as often as a model may be."""
        return len(self.executors) >= MAX_CAPTURES

    def transfers(self) -> Transfers:
        """What moves this model's storages. Models that ask for the same tiers share them, and with them one bound."""
        return self._tiers()

    def has_transfers(self) -> bool:
        """Whether anything of this model may have moved: looking opens no tiers."""
        return any(executor.edition.trips for executor in self.executors)

    def observed_links(self) -> tuple[ObservedLink, ...]:
        """What copies over each planned link took so far, this model's and those of others that share its tiers."""
        known = {tier.name for tier in self.options.machine.tiers}
        return tuple(link for link in self.transfers().observed_links() if link.tier in known)

    def called(self) -> AbstractContextManager[None]:
        """To be open while the model is called: models that have a Budget together hear of each other."""
        return nullcontext() if self.part is None else self.part.called()

    def make_room_outside_steps(self) -> None:
        """What runs without gradients is no step, and has the room of one: idle pages of the arena go back."""
        if self.is_bound and self.executors:
            self.memory.make_room()

    def add(self, executor: Executor) -> None:
        self.executors.append(executor)
        if self.part is not None:
            self.part.add(executor)

    def with_all_shapes(self, problem: Problem, num_nodes: int) -> Problem:
        """The problem of a shape of so many nodes, beside all that were captured since. Of a share, what the
        interpreter holds comes on top; a Budget of several models counts it itself."""
        amount = None if isinstance(self.options.budget, Budget) else self.options.amount
        is_here = self.where == CPU and problem.hardware.name == THIS_MACHINE
        if amount is None or parse_share(amount) is not None or not is_here:
            return problem
        nbytes = interpreter_nbytes(num_nodes, self.num_nodes - num_nodes)
        around = problem.surroundings.joined(Surroundings(interpreter_nbytes=nbytes))
        return problem if around == problem.surroundings else replace(problem, surroundings=around)

    def begins_again(self) -> bool:
        """Whether what was captured is out of date, and forgotten now: the front end captures again."""
        has_another_part = self.part is not None and self.part.is_worth_another_plan()
        has_less_room = self.device_room.leave_more()
        if not (self.seen.is_stale or has_another_part or has_less_room):
            return False
        if self.seen.is_stale:
            self.seen.begin_again()
        if self.part is not None:
            self.part.begin_again()
        self.executors.clear()
        self.num_nodes = 0
        self.disk_room.begin_again()
        self.memory.forget_all()
        self.memory.make_room()  # planning has the room of a step
        return True

    def warn_of_shapes(self, name: str, reason: Infeasible) -> None:
        """Nothing holds one shape beside what the interpreter holds for the others: it runs, and says so."""
        warnings.warn(
            f"{name} has no plan within the budget beside what the interpreter holds for other shapes of the model: the"
            f" process may take up to {format_nbytes(interpreter_nbytes(0, self.num_nodes))} more. Pad batches to fewer"
            f" sizes, or raise the budget to at least {format_nbytes(reason.minimum_nbytes)}"
            f" ({reason.minimum_nbytes} bytes).",
            BudgetExceeded,
            stacklevel=2,
        )

    def judge_surroundings(self, plan: Plan, found: Surroundings, num_left: int) -> None:
        """What was alive beside a step, and how many steps before it never came to their backward."""
        if num_left:
            self.seen.judge_left(plan, num_left)
        self.seen.judge_surroundings(plan, found if self.part is None else self.part.beside(found))

    def has_part_for(self, plan: Plan) -> bool:
        """Whether the plan is within what this model has of a Budget together with others."""
        return self.part is None or self.part.has_room_for(plan)

    def next_name(self) -> str:
        return self.name if not self.executors else f"{self.name} #{len(self.executors) + 1}"

    def judge_other_bits(self, name: str, found: Sequence[OtherBits]) -> None:
        """Of a trace that is about to be compiled: refused, or remembered for the warning and the report."""
        if found and not self.may_have_other_bits:
            raise InexactTrace(found[0].reason)
        if found:
            self.other_bits[name] = tuple(found)

    def tell_other_bits(self, executor: Executor, error: GradientError) -> None:
        """A captured graph is so far off, as its first step shows."""
        executor.measured.gradient_error = error
        found = self.other_bits[executor.plan.problem.graph.name]
        ops = ", ".join(dict.fromkeys(op.name for op in found))
        off = f"{error.relative:.2g}" if error.relative is not None else "an unknown share"
        warnings.warn(
            f"{self.name} trains with other last bits than plain PyTorch: {ops}. Its gradients are {off} off as one"
            f" vector, at most {error.worst or 0:.2g} ({error.worst_name}). {found[0].reason}"
            ' exact="strict" refuses such a model.',
            OtherLastBits,
            stacklevel=3,
        )

    def refuse_endless_captures(self) -> None:
        if self.has_all_captures():
            raise Unsupported(
                f"{self.name} was captured {MAX_CAPTURES} times, each time for other shapes or settings, and is called"
                " with new ones again."
                " Pad batches to a few sizes, or run the odd ones on the plain model."
            )

    def watch_next(self) -> None:
        """Watch the bytes of the next step, as those of the first were."""
        for executor in self.executors:
            executor.watch_next()

    def report(self) -> Report:
        fallback = self.eager()
        eager = None if fallback is None else fallback.part()
        also: Any = {"eager": eager, "process": self._process(), "verified": self._verified()}
        pieces = tuple(_piece(executor, self.other_bits) for executor in self.executors)
        if pieces:
            plan = self.executors[-1].plan
            return Report(self.name, plan.strategy, plan.problem.budget_nbytes, pieces, **also)
        if eager is not None:
            return Report(self.name, TENSOR_CACHE, eager.budget_nbytes, (), **also)
        raise InvalidInput(
            f"no captured graph of {self.name} has run a training step yet: call it and its backward once, then ask for"
            " the report. Without a budget, parts that cannot be captured (a fused nn.LSTM, say) run plain and have"
            " nothing to report."
        )

    def _verified(self) -> tuple[str, ...]:
        if self.options.verify is None:
            return ()
        return tuple(self.verified) or (f"{self.name}: not verified: no first step has come to its backward yet",)

    def _process(self) -> ProcessPart | None:
        before, now = self._began_with, resident()
        if before is None or now is None:
            return None
        memory = self.memory
        return ProcessPart(
            before_nbytes=before.now_nbytes,
            peak_before_nbytes=before.peak_nbytes,
            peak_nbytes=now.peak_nbytes,
            arena=_arena(memory.counts()),
            missing=memory.missing,
            returns_freed=memory.returns_freed,
            device=self._device(),
        )

    def _device(self) -> DevicePart | None:
        if self.where == CPU:
            return None
        host = self.transfers().stores.get("host") if self.has_transfers() else None
        return DevicePart(
            str(self.where),
            torch.accelerator.max_memory_allocated(self.where),
            torch.accelerator.max_memory_reserved(self.where),
            torch.accelerator.get_memory_info(self.where)[1],
            self.device_room.found,
            host.ordinary_nbytes if isinstance(host, HostStore) else 0,
        )


def _first_line(why: Exception) -> str:
    return (str(why).strip().splitlines() or [type(why).__name__])[0]


def _piece(executor: Executor, traced: Mapping[str, Sequence[OtherBits]]) -> Piece:
    graph = executor.plan.problem.graph
    predicted = summarize(executor.plan.timeline, graph)
    inexact = tuple(
        f"{graph.ops[moment].name} as {cost.variant}" for moment, cost in inexact_ops(executor.plan).items()
    )
    if not executor.plan.problem.is_exact:
        inexact = (f"the step with its {executor.plan.problem.form}", *inexact)
    found = (executor.measured.gradient_error, _density(executor))
    where = executor.edition.where
    differing = () if where == CPU else nondeterministic(((op.target, op.name) for op in graph.ops), where.type)
    other_bits = tuple(dict.fromkeys(op.name for op in traced.get(graph.name, ())))
    return Piece(graph.name, predicted, _measured(executor), *found, inexact, differing, other_bits)


def _arena(counts: MemoryCounts | None) -> ArenaPart | None:
    """None before there is one: the first whole iteration shows what it has to hold."""
    if counts is None or not counts.arena_nbytes:
        return None
    return ArenaPart(
        nbytes=counts.arena_nbytes,
        peak_nbytes=counts.arena_peak_nbytes,
        num_planned=counts.num_planned,
        num_outside=counts.num_unexpected,
        outside_nbytes=counts.unexpected_nbytes,
        num_moves_refused=counts.num_moves_refused,
        num_page_faults=counts.num_page_faults,
    )


def _density(executor: Executor) -> Density | None:
    found = executor.encodings.found
    if not found.density:
        return None
    return Density(executor.plan.problem.density, max(found.density.values()), found.num_too_dense)


def _measured(executor: Executor) -> TimelineSummary | None:
    measured = executor.measured
    if measured.timeline is None:
        return None
    graph = executor.plan.problem.graph
    measured.settle()
    if not (measured.forward_s and measured.backward_s):
        return summarize(measured.timeline, graph)
    num_steps = min(len(measured.forward_s), len(measured.backward_s))
    seconds = median(measured.forward_s) + median(measured.backward_s)
    return summarize(measured.timeline, graph, step_times_s=[seconds] * num_steps)
