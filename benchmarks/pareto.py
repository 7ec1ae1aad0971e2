"""Measured peak against measured step time: vdnn beside everything else that trains the same step in less memory.

For each of seven networks, in one process: plain eager PyTorch, `torch.utils.checkpoint` in its ways, gradient
accumulation, `torch.compile` swept over its activation memory budget with two backends, and vdnn at shares of
keep-all's peak and at each eager contender's own peak: at no more bytes, is it at least as fast?
`pareto_contenders.py` has them all.

Peaks are the allocator's own, workspaces included, by one measure for everybody (`step_memory.py`), on steps of their
own. Times are of other steps, in rounds that run one step of everybody in an order that changes; figures are medians,
and every trial is in the record. Compiling and planning is not part of a step; it has a column of its own. Each
contender's gradients are compared with eager's. A contender that fails is a row with its error.

    python benchmarks/pareto.py                                  # all of it
    python benchmarks/pareto.py --networks resnet50 vit --rounds 9 --save benchmarks/results/pareto.md
    python benchmarks/pareto.py --networks unet --contenders eager checkpoint "vdnn exact" --small --rounds 1
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import time
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from pareto_contenders import (
    COMPILED_FAMILIES,
    EAGER,
    EAGER_FAMILIES,
    FAMILIES,
    OUR_FAMILIES,
    STRATEGY,
    Contender,
    compiled_contenders,
    eager_contenders,
    vdnn_contenders,
    within,
)
from pareto_plot import picture
from pareto_verdict import Point, middle_half, sufficient, verdicts
from provenance import Record, provenance
from step_memory import Mappings, StepMemory, live_nbytes, step_memory, uncounted_mappings
from torch import Tensor

from vdnn.models.gpt2 import gpt2
from vdnn.models.registry import MODELS
from vdnn.models.spec import ModelSpec, Workload
from vdnn.plan.plan import Plan
from vdnn.units import format_nbytes, format_seconds

WARM_UP = 2  # the first step compiles, and vdnn watches it; in the second, memory pools fill
SEED = 7  # of the step whose gradients are compared


@dataclass(frozen=True)
class Setting:
    """Sizes at which a plain step takes between a third of a second and two seconds on two cores."""

    name: str
    title: str
    spec: ModelSpec
    batch: int
    image_size: int | None = None

    def load(self, *, small: bool) -> Workload:
        torch.manual_seed(0)
        spec = self.spec.small() if small else self.spec
        if self.image_size is not None and not small:
            spec = spec.at_image_size(self.image_size)
        return spec.workload(self.batch)

    def heading(self, *, small: bool) -> str:
        size = "" if self.image_size is None else f", {self.image_size}×{self.image_size}"
        return f"{self.title}, batch {self.batch}{', toy widths' if small else size}"


SETTINGS = (
    Setting("vgg16", "VGG-16", MODELS["vgg16"], 8, 160),
    Setting("resnet50", "ResNet-50", MODELS["resnet50"], 8, 160),
    Setting("googlenet", "GoogLeNet", MODELS["googlenet"], 16, 160),
    Setting("densenet121", "DenseNet-121", MODELS["densenet121"], 8, 128),
    Setting("unet", "U-Net", MODELS["unet"], 4, 204),
    Setting("vit", "ViT-B/16", MODELS["vit"], 4),
    Setting("gpt2", "GPT-2 shaped, 384×6, 256 tokens", gpt2(width=384, depth=6, length=256), 4),
)


@dataclass
class Entry:
    """A contender and what was measured of it. `twin` is an earlier one that turned out to run the same plan."""

    contender: Contender
    memory: StepMemory | None = None
    difference: str = ""
    ready_s: float = 0.0
    error: str = ""
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
        nbytes = found.memory.peak_nbytes
        return Point(contender.name, contender.family, nbytes, tuple(found.seconds), contender.is_same_step)


class Reference:
    """Gradients and buffers of eager's step with a fixed seed: what everybody's are compared with."""

    def __init__(self, load: Workload) -> None:
        self._load = load
        self._before = [buffer.clone() for buffer in load.model.buffers()]
        self._gradients: list[Tensor] = []
        self._after: list[Tensor] = []

    def difference(self, contender: Contender) -> str:
        """In words. The first contender to come is what the others are compared with."""
        self._load.model.zero_grad(set_to_none=True)
        for buffer, before in zip(self._load.model.buffers(), self._before, strict=True):
            buffer.copy_(before)
        torch.manual_seed(SEED)
        contender.train()
        gradients = [p.grad for p in self._load.model.parameters() if p.grad is not None]
        if not self._gradients:
            self._gradients = gradients
            self._after = [buffer.clone() for buffer in self._load.model.buffers()]
            return "the reference"
        after = zip(self._load.model.buffers(), self._after, strict=True)
        moved = "" if all(torch.equal(a, b) for a, b in after) else "; other running statistics"
        return relative_difference(gradients, self._gradients) + moved


def relative_difference(gradients: Sequence[Tensor], reference: Sequence[Tensor]) -> str:
    pairs = list(zip(gradients, reference, strict=True))
    if all(torch.equal(a, b) for a, b in pairs):
        return "same bits"
    apart = sum(float((a - b).double().square().sum()) for a, b in pairs)
    size = sum(float(b.double().square().sum()) for _, b in pairs)
    return f"{(apart / size) ** 0.5:.1e}"


def compare(setting: Setting, families: Sequence[str], rounds: int, *, small: bool) -> list[Entry]:
    load = setting.load(small=small)
    reference = Reference(load)
    with uncounted_mappings() as mappings:
        entries = list(prepare_all(load, families, reference, mappings))
    del reference
    race(load, entries, rounds)
    torch._dynamo.reset()  # the next network starts without this one's compiled code
    return entries


def prepare_all(load: Workload, families: Sequence[str], reference: Reference, mappings: Mappings) -> Iterator[Entry]:
    """Eager ones first: their peaks are vdnn's budgets. Of vdnn's equal plans, one is measured."""
    peaks: dict[str, int] = {}
    known: dict[Hashable, Entry] = {}
    for contender in eager_contenders(load):
        if contender.family in families:
            entry = prepared(load, contender, reference, mappings, known)
            if entry.memory is not None:
                peaks[entry.name] = entry.memory.peak_nbytes
            yield entry
    for family in families:
        contenders: Iterator[Contender] = iter(())
        if family in COMPILED_FAMILIES:
            contenders = compiled_contenders(load, family)
        if family in OUR_FAMILIES:
            contenders = vdnn_contenders(load, family, peaks)
        for contender in contenders:
            yield prepared(load, contender, reference, mappings, known)


def prepared(
    load: Workload, contender: Contender, reference: Reference, mappings: Mappings, known: dict[Hashable, Entry]
) -> Entry:
    """Compiled, warm, its gradients compared and its peak measured; or with the reason why not."""
    entry = Entry(contender)
    load.model.zero_grad(set_to_none=True)
    before_nbytes = live_nbytes()
    try:
        begin = time.perf_counter()
        timed(load, contender)
        entry.ready_s = time.perf_counter() - begin
        plans = contender.plans()
        entry.twin = known.setdefault(tuple(map(program_of, plans)), entry) if plans else None
        if entry.twin is entry or entry.twin is None:
            entry.twin = None
            measure(entry, load, reference, mappings, before_nbytes)
    except Exception as failure:  # whatever stops a contender is a finding about it
        entry.error = f"{type(failure).__name__}: {(str(failure).splitlines() or [''])[0]}"
    said = entry.error or f"ready in {entry.ready_s:.1f} s"
    print(f"    {load.name}: {contender.name}: {said}", file=sys.stderr, flush=True)
    return entry


def measure(entry: Entry, load: Workload, reference: Reference, mappings: Mappings, before_nbytes: int) -> None:
    for _ in range(WARM_UP - 1):
        timed(load, entry.contender)
    entry.difference = reference.difference(entry.contender)
    load.model.zero_grad(set_to_none=True)
    held_nbytes = max(live_nbytes() - before_nbytes, 0) if entry.contender.family != EAGER else 0
    if entry.contender.uses_slower_tiers():
        held_nbytes += mappings.resident_staging_nbytes()
    entry.memory = step_memory(entry.contender.train, load, held_nbytes)


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


HEAD = ("", "measured peak", "/ eager", "step time", "/ eager", "fastest – slowest", "gradients", "ready in")


def rows(entries: Sequence[Entry]) -> Iterator[Sequence[str]]:
    base = next((entry.point for entry in entries if entry.contender.family == EAGER), None)
    for entry in entries:
        if entry.error:
            yield [entry.name, f"failed: {entry.error.replace('|', '¦')}", *[""] * 6]
        elif entry.twin is not None:
            yield [entry.name, f"the same plan as {entry.twin.name}", *[""] * 5, format_seconds(entry.ready_s)]
        else:
            yield cells(entry, base)


def cells(entry: Entry, base: Point | None) -> list[str]:
    point = entry.point
    assert point is not None, f"{entry.name} neither failed nor was measured"
    note = f"; {entry.contender.note}" if entry.contender.note else ""
    return [
        entry.name,
        format_nbytes(point.peak_nbytes),
        "" if base is None else f"{point.peak_nbytes / base.peak_nbytes:.3f}",
        format_seconds(point.time_s),
        "" if base is None else f"{point.time_s / base.time_s:.3f}",
        f"{format_seconds(min(point.seconds))} – {format_seconds(max(point.seconds))}",
        entry.difference + note,
        format_seconds(entry.ready_s),
    ]


WITHIN_HEAD = (
    "budget",
    "its peak",
    "ours",
    "exact or not",
    "time over its",
    "middle half of rounds",
    "at no more bytes at least as fast?",
)


def within_rows(entries: Sequence[Entry]) -> Iterator[Sequence[str]]:
    """Each eager contender beside the ones that had its peak for a budget."""
    points = {entry.name: entry.point for entry in entries}
    for peer in (entry for entry in entries if entry.contender.family in EAGER_FAMILIES):
        for family in OUR_FAMILIES:
            theirs, ours = peer.point, points.get(within(peer.name, family))
            if theirs is not None and ours is not None:
                low, high = middle_half(ours, theirs)
                yield [
                    peer.name + ("" if theirs.is_same_step else " (another computation)"),
                    format_nbytes(theirs.peak_nbytes),
                    format_nbytes(ours.peak_nbytes),
                    family,
                    f"{ours.time_s / theirs.time_s:.3f}",
                    f"{low:.3f} – {high:.3f}",
                    sufficient(ours, theirs),
                ]


def tell(record: Record, title: str, entries: Sequence[Entry]) -> None:
    record.say(f"## {title}")
    record.table(HEAD, rows(entries))
    points = [entry.point for entry in entries if entry.twin is None]
    record.say(*verdicts([point for point in points if point is not None], OUR_FAMILIES))
    compared = list(within_rows(entries))
    if compared:
        record.say("", f"{STRATEGY} with an eager contender's measured peak for its budget:")
        record.table(WITHIN_HEAD, compared)
    unseen = [entry for entry in entries if entry.memory is not None and entry.memory.unreleased_nbytes]
    for entry in unseen:
        assert entry.memory is not None
        nbytes = format_nbytes(entry.memory.unreleased_nbytes)
        record.say(f"- {entry.name}: {nbytes} of the recorded step were not seen to be released.")
    trials = (f"{e.name:44}" + "".join(f" {s:7.3f}" for s in e.seconds) for e in entries if e.seconds)
    record.say("", "Every trial, in seconds, in the order of the rounds:", "", "```text", *trials, "```", "")


HOW = (
    "- Peak: the highest sum of what PyTorch's allocator handed out during one step, on top of parameters, buffers,"
    " sample and what the contender keeps between steps. Workspaces inside ops count, for everybody alike.",
    "- Step: forward and backward from no gradients; the optimizer is outside. Medians over rounds that run everybody"
    " once, in a new order each time. `ready in` is the first step, with compiling and planning; caches of earlier runs"
    " shorten it.",
    "- Gradients: their distance from eager's with the same seed, over eager's norm. Inductor draws other dropout masks"
    " and parts of a batch draw theirs one after the other: large numbers on networks with dropout are these.",
    "- `other running statistics`: the contender leaves other values in batch normalization's buffers than eager does;"
    " a block that is run again moves them twice.",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [setting.name for setting in SETTINGS]
    parser.add_argument("--networks", nargs="*", choices=names, default=names)
    parser.add_argument("--contenders", nargs="*", choices=FAMILIES, default=FAMILIES, help="families of them")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=None)
    parser.add_argument("--image-size", type=int, default=None)
    parser.add_argument("--small", action="store_true", help="the same networks at toy widths, to try the script")
    parser.add_argument("--save", type=Path, default=None, help="a file for the record; the picture goes beside it")
    arguments = parser.parse_args()
    record, panels = Record(), {}
    record.say("# Peak against step time", "", *provenance(), *HOW, "")
    if arguments.save:
        record.say(f"![peak against step time]({arguments.save.with_suffix('.svg').name})", "")
    for setting in (chosen(setting, arguments) for setting in SETTINGS if setting.name in arguments.networks):
        entries = compare(setting, arguments.contenders, arguments.rounds, small=arguments.small)
        title = setting.heading(small=arguments.small)
        tell(record, title, entries)
        points = [entry.point for entry in entries if entry.twin is None]
        panels[title] = [point for point in points if point is not None]
        if arguments.save:  # after every network: an hour's work is not lost to whatever happens in the next
            record.save(arguments.save)
            arguments.save.with_suffix(".svg").write_text(picture(panels, f"medians of {arguments.rounds} rounds"))


def chosen(setting: Setting, arguments: argparse.Namespace) -> Setting:
    size = (arguments.image_size or setting.image_size) if setting.image_size is not None else None
    return replace(setting, batch=arguments.batch or setting.batch, image_size=size)


if __name__ == "__main__":
    main()
