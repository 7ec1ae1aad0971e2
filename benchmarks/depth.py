"""How deep can it go? The bottleneck ResNet (6, 32, 788, 6), 2498 weighted layers, one step within a tenth of its peak.

SuperNeurons (PPoPP 2018, section 4.3) calls it ResNet2500 and counts about 10^4 basic layers. Here its step is
captured, planned and run: every part of the way is timed on its own, and the planner runs once more in a process that
does nothing else, for its memory. `--compare` has plain PyTorch take the same step first, where that fits, and compares
gradients bit for bit.

Parameters and gradients of the network are 7 GB at its full width, so that a tenth of the peak is feasible only where
feature maps come to more than 70 GB: from about 36 images of 224x224 on. `--width 16` is the same depth with a quarter
of the channels: a sixteenth of the parameters, a quarter of the maps, a sixteenth of the arithmetic.

    python benchmarks/depth.py                                              # an hour on two cores
    python benchmarks/depth.py --width 16 --batch 64 --image-size 96 --compare
    python benchmarks/depth.py --model resnet-2-2-10-2 --width 8 --batch 4 --image-size 64 --budget 60%
"""

from __future__ import annotations

import argparse
import os
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch
from provenance import Record, provenance
from torch import nn

import vdnn
from vdnn.api import session_of
from vdnn.compile import ahead_of_time, form_choice, pipeline
from vdnn.environment import PLAN_CACHE
from vdnn.models.registry import resolve
from vdnn.models.spec import ModelSpec, Workload
from vdnn.plan.files.saved import load
from vdnn.plan.judge.validate import check
from vdnn.plan.model.bounds import minimum_budget
from vdnn.plan.plan import Plan
from vdnn.plan.strategy_table import solve
from vdnn.runtime.process_memory import in_child, peak_of
from vdnn.units import KiB, format_nbytes, format_seconds

PASSES = (
    (ahead_of_time, "export_joint"),
    *((pipeline, name) for name in ("tidy", "lower", "estimate", "cut", "program")),
)
PLANNING = ((form_choice, "decide"),)
WORDS = {
    "export_joint": "capture by PyTorch",
    "tidy": "tidy the graph",
    "lower": "lower it to storages",
    "estimate": "measure distinct ops",
    "decide": "plan, and check the plan",
    "cut": "cut into forward and backward",
    "program": "generate code",
}


@dataclass(frozen=True)
class Setting:
    model: str
    batch: int
    image_size: int
    width: int
    strategy: str
    budget: str
    costs: str = "measured"

    def workload(self) -> Workload:
        """In channels_last, where a CPU's convolutions need no workspace."""
        spec = resolve(self.model)
        assert isinstance(spec, ModelSpec), f"{self.model} is no network of the zoo"
        build: Callable[..., nn.Module] = spec.build
        spec = replace(spec, build=partial(build, width=self.width)).at_image_size(self.image_size)
        made = spec.workload(self.batch)
        made.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        images, target = made.args
        return replace(made, args=(images.to(memory_format=torch.channels_last), target))

    def virtualized(self, made: Workload) -> Callable[..., Any]:
        return vdnn.virtualize(
            made.step, sample=made.args, budget=self.budget, strategy=self.strategy, costs=self.costs
        )


@dataclass(frozen=True)
class Outcome:
    """What one setting came to. `seconds` has one entry per pass on the way to the first step."""

    seconds: dict[str, float]
    measured_nbytes: int
    step_times_s: list[float]
    losses: list[float]
    num_gradients: int
    num_differing: int | None
    """Gradients that differ in any bit from plain PyTorch's; None: not compared."""
    process_nbytes: int


@dataclass
class Stopwatch:
    """Adds up what calls of named functions take."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def watching(self, functions: Iterable[tuple[ModuleType, str]]) -> Iterator[None]:
        plain = [(module, name, getattr(module, name)) for module, name in functions]
        for module, name, function in plain:
            setattr(module, name, self._timed(name, function))
        try:
            yield
        finally:
            for module, name, function in plain:
                setattr(module, name, function)

    def _timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            begin = time.perf_counter()
            result = function(*args, **kwargs)
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - begin
            return result

        return timed


def train(setting: Setting, *, num_steps: int = 1, compare: bool = False) -> tuple[Outcome, Plan]:
    """Capture, plan and run; with `compare`, plain PyTorch takes a step of the same network before."""
    torch.manual_seed(0)
    made = setting.workload()
    expected = plain_gradients(made) if compare else None
    watch = Stopwatch()
    with patch.dict(os.environ, {PLAN_CACHE: "off"}), watch.watching((*PASSES, *PLANNING)):
        step = setting.virtualized(made)
    (executor,) = session_of(step).executors
    times_s: list[float] = []
    losses: list[float] = []
    differing: int | None = None
    for _ in range(num_steps):
        made.model.zero_grad(set_to_none=True)
        begin = time.perf_counter()
        loss = step(*made.args)
        loss.backward()
        times_s.append(time.perf_counter() - begin)
        losses.append(loss.item())
        if expected is not None and differing is None:
            differing = num_differing(made, expected)
    assert executor.measured.timeline is not None, "the first step was to be watched"
    outcome = Outcome(
        seconds=watch.seconds,
        measured_nbytes=executor.measured.timeline.peak_nbytes,
        step_times_s=times_s,
        losses=losses,
        num_gradients=sum(1 for _ in made.model.parameters()),
        num_differing=differing,
        process_nbytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KiB,
    )
    return outcome, executor.plan


@dataclass(frozen=True)
class Figures:
    """What a plan says of itself."""

    num_steps: int
    num_maps: int
    keep_all_nbytes: int
    floor_nbytes: int
    budget_nbytes: int
    simulated_nbytes: int
    offloaded_nbytes: int
    decisions: str


def figures(plan: Plan) -> Figures:
    problem, storages = plan.problem, plan.problem.graph.storages
    assert problem.budget_nbytes is not None, "a share of the peak was asked for"
    moved = (d for d in plan.decisions if d.action.kind == "offload")
    kinds = Counter(decision.action.kind for decision in plan.decisions)
    return Figures(
        num_steps=len(problem.graph),
        num_maps=len(problem.graph.stashed),
        keep_all_nbytes=Plan(replace(problem, budget_nbytes=None), "keep-all").peak_nbytes,
        floor_nbytes=minimum_budget(problem)[0],
        budget_nbytes=problem.budget_nbytes,
        simulated_nbytes=plan.peak_nbytes,
        offloaded_nbytes=sum(storages[decision.storage].nbytes for decision in moved),
        decisions=", ".join(f"{count} {kind}" for kind, count in kinds.items()),
    )


def plan_alone(plan_path: Path) -> tuple[float, int]:
    """Seconds of planning and checking, and how far the process grew, its problem included. For a fresh process."""
    seconds: list[float] = []

    def work() -> None:
        known = load(plan_path)
        begin = time.perf_counter()
        check(solve(known.problem, known.strategy))
        seconds.append(time.perf_counter() - begin)

    peak = peak_of(work)
    return seconds[0], peak.delta_nbytes


def plain_gradients(made: Workload) -> list[torch.Tensor | None]:
    """Of one step of plain PyTorch."""
    made.step(*made.args).backward()
    gradients = [parameter.grad for parameter in made.model.parameters()]
    made.model.zero_grad(set_to_none=True)
    return gradients


def num_differing(made: Workload, expected: Sequence[torch.Tensor | None]) -> int:
    """How many gradients differ in any bit."""
    found = [parameter.grad for parameter in made.model.parameters()]
    return sum(
        one is None or other is None or not torch.equal(one, other) for one, other in zip(expected, found, strict=True)
    )


def show(record: Record, setting: Setting, outcome: Outcome, plan: Plan) -> None:
    record.say(
        f"{setting.model}, width {setting.width}, batch {setting.batch}, images of {setting.image_size}x"
        f"{setting.image_size}, channels_last, strategy `{setting.strategy}`, budget {setting.budget} of keep-all."
    )
    found = figures(plan)
    share = outcome.measured_nbytes / found.keep_all_nbytes
    rows = [
        ("steps of the graph", f"{found.num_steps}"),
        ("maps that cross to backward", f"{found.num_maps}"),
        *((WORDS[name], format_seconds(seconds)) for name, seconds in outcome.seconds.items()),
        ("decisions", found.decisions),
        ("copied to disk and back", format_nbytes(found.offloaded_nbytes)),
        ("keep-all peak", format_nbytes(found.keep_all_nbytes)),
        ("smallest budget by moving alone", format_nbytes(found.floor_nbytes)),
        ("budget", format_nbytes(found.budget_nbytes)),
        ("simulated peak", format_nbytes(found.simulated_nbytes)),
        ("measured peak", f"{format_nbytes(outcome.measured_nbytes)}, {share:.1%} of keep-all"),
        ("step, simulated", format_seconds(plan.step_time_s)),
        ("steps, the first one watched", ", ".join(map(format_seconds, outcome.step_times_s))),
        ("loss", ", ".join(f"{loss:.6f}" for loss in outcome.losses)),
    ]
    if outcome.num_differing is None:  # else plain PyTorch was there too
        rows.append(("peak of the process, from capture on", format_nbytes(outcome.process_nbytes)))
    else:
        rows.append(("gradients that differ from plain", f"{outcome.num_differing} of {outcome.num_gradients}"))
    record.table(("", ""), rows)


def settings() -> tuple[argparse.Namespace, Setting]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet-6-32-788-6")
    parser.add_argument("--batch", type=int, default=40)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--strategy", default="superneurons")
    parser.add_argument("--budget", default="10%")
    parser.add_argument("--costs", default="measured", choices=("measured", "roofline"))
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--compare", action="store_true", help="with plain PyTorch's gradients, bit for bit")
    parser.add_argument("--save", type=Path)
    found = parser.parse_args()
    setting = Setting(
        found.model, found.batch, found.image_size, found.width, found.strategy, found.budget, found.costs
    )
    return found, setting


def main() -> None:
    arguments, setting = settings()
    record = Record()
    record.say(*provenance(), "")
    outcome, plan = train(setting, num_steps=arguments.steps, compare=arguments.compare)
    show(record, setting, outcome, plan)
    with TemporaryDirectory() as folder:
        seconds, nbytes = in_child(plan_alone, plan.save(Path(folder) / "plan.json"))
    record.say(f"Planning and checking alone: {format_seconds(seconds)}, {format_nbytes(nbytes)} of memory.")
    if arguments.save is not None:
        record.save(arguments.save)


if __name__ == "__main__":
    main()
