"""One network of `benchmarks/pareto.py`: everybody made ready, compared, weighed and timed.

Enters: a workload and a line-up. Leaves: an `Entry` per contender. First each is compiled and warm,
its gradients are compared with eager's and one of its steps is recorded for its peak; then all take turns, and only
their times are taken. What stops a contender is written down, and the others go on.
"""

from __future__ import annotations

import gc
import random
import sys
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from pareto_contenders import (
    COMPILED_FAMILIES,
    EXACT,
    INEXACT,
    Contender,
    Lineup,
    compiled_contenders,
    eager_contenders,
    is_normalized,
    train_with,
    vdnn_contender,
    within,
)
from pareto_verdict import Point
from step_memory import Mappings, StepMemory, live_nbytes, staging_buffers, step_memory
from torch import Tensor

from vdnn.errors import Infeasible
from vdnn.models.spec import Workload
from vdnn.plan.plan import Plan

SEED = 7  # of the step whose gradients are compared
ROUNDING = 1e-5  # a loss that is nearer than this is the same one, summed in another order
WRONG = 1e-2  # far beyond what summing in another order does to float32 gradients here: 1e-8 to 1e-6 was seen


@dataclass
class Entry:
    """A contender and what was measured of it. `twin` is an earlier one that turned out to run the same plan."""

    contender: Contender
    memory: StepMemory | None = None
    staging_nbytes: int = 0
    difference: Difference | None = None
    ready_s: float = 0.0
    error: str = ""
    minimum_nbytes: int | None = None  # of who failed because its budget cannot be met
    twin: Entry | None = None
    seconds: list[float] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.contender.name

    @property
    def measured(self) -> Entry:
        return self if self.twin is None else self.twin

    @property
    def point(self) -> Point | None:
        """None for who failed."""
        found, contender = self.measured, self.contender
        if found.memory is None or not found.seconds:
            return None
        is_same_step = contender.is_same_step and not (found.difference and found.difference.is_wrong)
        figures = (found.memory.peak_nbytes, tuple(found.seconds), is_same_step, found.staging_nbytes)
        return Point(contender.name, contender.family, *figures)


@dataclass(frozen=True)
class Difference:
    """From a plain step with the same seed. `gradients` is the distance of the gradients over their norm, None for the
    same bits; `loss` is relative too."""

    loss: float
    gradients: float | None
    has_other_buffers: bool

    @property
    def is_wrong(self) -> bool:
        """The same loss with other gradients: forward drew the same dropout masks, so these are not its gradients."""
        return self.loss < ROUNDING and self.gradients is not None and self.gradients > WRONG

    def __str__(self) -> str:
        words = ["same bits" if self.gradients is None else f"{self.gradients:.1e}"]
        words += ["WRONG for its loss"] if self.is_wrong else []
        words += ["other running statistics"] if self.has_other_buffers else []
        return "; ".join(words)


class Reference:
    """Loss, gradients and buffers of a plain step with a fixed seed: what everybody's are compared with."""

    def __init__(self, load: Workload) -> None:
        self._load = load
        self._before = [buffer.clone() for buffer in load.model.buffers()]
        self._loss, self._gradients = self._trained(partial(train_with, load, load.step))
        self._after = [buffer.clone() for buffer in load.model.buffers()]

    def difference(self, contender: Contender) -> Difference:
        loss, gradients = self._trained(contender.train)
        buffers = zip(self._load.model.buffers(), self._after, strict=True)
        return Difference(
            abs(loss - self._loss) / abs(self._loss),
            relative_difference(gradients, self._gradients),
            not all(torch.equal(a, b) for a, b in buffers),
        )

    def _trained(self, train: Callable[[], Tensor]) -> tuple[float, list[Tensor]]:
        self._load.model.zero_grad(set_to_none=True)
        for buffer, before in zip(self._load.model.buffers(), self._before, strict=True):
            buffer.copy_(before)
        torch.manual_seed(SEED)
        loss = float(train())
        return loss, [parameter.grad for parameter in self._load.model.parameters() if parameter.grad is not None]


def relative_difference(gradients: Sequence[Tensor], reference: Sequence[Tensor]) -> float | None:
    """None for the same bits."""
    pairs = list(zip(gradients, reference, strict=True))
    if all(torch.equal(a, b) for a, b in pairs):
        return None
    apart = sum(float((a - b).double().square().sum()) for a, b in pairs)
    size = sum(float(b.double().square().sum()) for _, b in pairs)
    return (apart / size) ** 0.5


def compare(load: Workload, lineup: Lineup, rounds: int) -> list[Entry]:
    """The whole line-up on one workload."""
    reference = Reference(load)
    with staging_buffers() as mappings:
        entries = list(prepare_all(load, lineup, reference, mappings))
    del reference
    race(load, entries, rounds)
    torch._dynamo.reset()  # the next network starts without this one's compiled code
    return entries


def prepare_all(load: Workload, lineup: Lineup, reference: Reference, mappings: Mappings) -> Iterator[Entry]:
    """Eager ones first: their peaks are vdnn's budgets. Of vdnn's equal plans, one is measured."""
    peaks: dict[str, int] = {}
    prepare = partial(prepared, load, reference, mappings, {})
    for contender in eager_contenders(load):
        if contender.family in lineup.families:
            entry = prepare(contender)
            if entry.memory is not None:
                peaks[entry.name] = entry.memory.peak_nbytes
            yield entry
    for family in lineup.families:
        if family in COMPILED_FAMILIES:
            yield from map(prepare, compiled_contenders(load, family, lineup.activation_budgets))
        if family == EXACT or (family == INEXACT and not is_normalized(load)):
            yield from prepare_ours(load, family, lineup, peaks, prepare)


def prepare_ours(
    load: Workload, family: str, lineup: Lineup, peaks: Mapping[str, int], prepare: Callable[[Contender], Entry]
) -> Iterator[Entry]:
    """At shares of keep-all's peak down to the least that can be met, and at `peaks`: measured bytes by the name of who
    had them."""
    for share in sorted(lineup.shares, reverse=True):
        entry = prepare(vdnn_contender(load, family, f"{share} %", f"{share}%"))
        yield entry
        if entry.minimum_nbytes is not None:
            yield prepare(vdnn_contender(load, family, "minimum", entry.minimum_nbytes))
            break
    for peer, nbytes in peaks.items():
        yield prepare(vdnn_contender(load, family, within(peer), nbytes))


def prepared(
    load: Workload, reference: Reference, mappings: Mappings, known: dict[Hashable, Entry], contender: Contender
) -> Entry:
    """Compiled, warm, its gradients compared and its peak measured; or with the reason why not."""
    entry = Entry(contender)
    load.model.zero_grad(set_to_none=True)
    before_nbytes = live_nbytes()
    try:
        begin = time.perf_counter()
        timed(load, contender)
        entry.ready_s = time.perf_counter() - begin
        first = known.setdefault(identity(contender), entry)
        if first is entry:
            measure(entry, load, reference, mappings, before_nbytes)
        else:
            entry.twin = first
    except Infeasible as reason:
        entry.error, entry.minimum_nbytes = str(reason).splitlines()[0], reason.minimum_nbytes
    except Exception as failure:  # whatever stops a contender is a finding about it
        entry.error = f"{type(failure).__name__}: {(str(failure).splitlines() or [''])[0]}"
    said = entry.error or f"ready in {entry.ready_s:.1f} s"
    print(f"    {load.name}: {contender.name}: {said}", file=sys.stderr, flush=True)
    return entry


def measure(entry: Entry, load: Workload, reference: Reference, mappings: Mappings, before_nbytes: int) -> None:
    entry.difference = reference.difference(entry.contender)  # its second step: now memory pools are full
    load.model.zero_grad(set_to_none=True)
    held_nbytes = max(live_nbytes() - before_nbytes, 0)
    if entry.contender.uses_slower_tiers():
        entry.staging_nbytes = mappings.resident_staging_nbytes()
    entry.memory = step_memory(entry.contender.train, load, held_nbytes)


def identity(contender: Contender) -> Hashable:
    """Equal for vdnn contenders that run the same programs; everybody else is unlike anybody."""
    plans = contender.plans()
    return tuple(map(program_of, plans)) if plans else contender.name


def program_of(plan: Plan) -> Hashable:
    """What makes two plans the same program: the ops, what is done with each storage, and how each op is computed."""
    ops = tuple((op.name, op.target) for op in plan.problem.graph.ops)
    decisions = tuple(repr(replace(decision, reason="")) for decision in plan.decisions)
    return ops, decisions, tuple(sorted((step, plan.costs[step].variant) for step in plan.variants))


def race(load: Workload, entries: Sequence[Entry], rounds: int) -> None:
    """Steps of everybody who is ready, round by round. What exists by now is no longer the garbage collector's
    business: looking through all those graphs takes it as long as a step, at moments of its own choosing."""
    ready = [entry for entry in entries if entry.memory is not None]
    gc.collect()
    gc.freeze()
    for number in range(rounds):
        random.Random(number).shuffle(ready)
        for entry in ready:
            entry.seconds.append(timed(load, entry.contender))
    gc.unfreeze()


def timed(load: Workload, contender: Contender) -> float:
    load.model.zero_grad(set_to_none=True)
    begin = time.perf_counter()
    contender.train()
    return time.perf_counter() - begin
