"""Does a step take as long as its plan says? Predicted and measured step times, network by budget by strategy.

For every network: keep-all, and each strategy at shares of keep-all's peak down to the least that it can do with, all
with measured costs. Steps of all plans of a network alternate in one process; the measured figure is the median of
steps during which no other process took the cores (`quiet.py`). The predicted figure is `plan.step_time_s`, made before
the first step ran.

    python benchmarks/predicted_time.py                                # all networks
    python benchmarks/predicted_time.py resnet50 vit --shares 50       # some
    python benchmarks/predicted_time.py --save benchmarks/results/predicted-time_cpu-2core_202611.md
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from provenance import Record, provenance
from quiet import QuietRun, quiet_run, wait_until_quiet

import vdnn
from vdnn import models
from vdnn.api import session_of
from vdnn.errors import Infeasible
from vdnn.models.gpt2 import gpt2
from vdnn.models.spec import Workload
from vdnn.units import format_nbytes, format_seconds

SHARES = (100, 75, 50, 35, 25)
COMPARED = ["offload", "gist", "superneurons", "recompute-cost", "auto"]
GOAL = 0.15  # of the measured step time
PATIENCE_S = 60.0  # how long measuring waits for other processes to be done


def images(name: str, batch: int, size: int) -> Workload:
    return models.load(name, batch, image_size=size, channels_last=True)


NETWORKS: dict[str, Callable[[], Workload]] = {  # sizes at which a step takes 0.3 to 2 s on two cores
    "vgg16": partial(images, "vgg16", 8, 192),
    "resnet50": partial(images, "resnet50", 16, 112),
    "googlenet": partial(images, "googlenet", 32, 112),
    "densenet121": partial(images, "densenet121", 16, 112),
    "unet": partial(images, "unet", 2, 252),
    "vit": partial(models.load, "vit", 4),
    "gpt2-256x6-256": partial(gpt2(width=256, depth=6, length=256, vocabulary=8192).workload, 4),
}


@dataclass
class Contender:
    """One plan at run time."""

    strategy: str
    asked: str
    step: Callable[..., Any]
    runs: list[QuietRun] = field(default_factory=list)

    @property
    def predicted_s(self) -> float:
        return sum(executor.plan.step_time_s for executor in session_of(self.step).executors)

    @property
    def measured_s(self) -> float:
        quiet = [run.seconds for run in self.runs if run.is_quiet]
        return median(quiet or [run.seconds for run in self.runs])

    @property
    def ratio(self) -> float:
        return self.predicted_s / self.measured_s

    @property
    def row(self) -> list[str]:
        (executor,) = session_of(self.step).executors
        budget = executor.plan.problem.budget_nbytes
        return [
            self.strategy,
            self.asked,
            format_nbytes(budget) if budget else "-",
            format_seconds(self.predicted_s),
            format_seconds(self.measured_s),
            f"{self.ratio:.2f}",
            f"{sum(run.is_quiet for run in self.runs)} of {len(self.runs)}",
        ]


def contenders(load: Workload, shares: list[int], strategies: list[str]) -> Iterator[Contender]:
    """Those whose budget can be met, each after a first step that captures it; and, in place of those that cannot, one
    with the least that can."""
    yield virtualized(load, "keep-all", "-", None)
    for strategy in strategies:
        for share in sorted(shares, reverse=True):
            try:
                yield virtualized(load, strategy, f"{share} %", f"{share}%")
            except Infeasible as reason:
                yield virtualized(load, strategy, "minimum", reason.minimum_nbytes)
                break


def virtualized(load: Workload, strategy: str, asked: str, budget: int | str | None) -> Contender:
    wait_until_quiet(PATIENCE_S)  # ops are measured now
    step = vdnn.virtualize(load.step, strategy=strategy, budget=budget, costs="measured", fullgraph=True)
    train(load, step)
    return Contender(strategy, asked, step)


def train(load: Workload, step: Callable[..., Any]) -> None:
    load.model.zero_grad(set_to_none=True)
    step(*load.args).backward()


def compare(load: Workload, shares: list[int], strategies: list[str], rounds: int) -> list[Contender]:
    entries = list(contenders(load, shares, strategies))
    for _ in range(rounds):
        for entry in entries:
            entry.runs.append(quiet_run(partial(train, load, entry.step)))
    return entries


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=list(NETWORKS), help=f"of {', '.join(NETWORKS)}")
    parser.add_argument("--shares", type=int, nargs="*", default=list(SHARES))
    parser.add_argument("--strategies", nargs="*", default=COMPARED)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--save", type=Path)
    arguments = parser.parse_args()
    record = Record()
    record.say("# Predicted and measured step times", "", *provenance(), "")
    ratios: list[float] = []
    for name in arguments.networks:
        torch._dynamo.reset()
        gc.collect()
        torch.manual_seed(0)
        entries = compare(NETWORKS[name](), arguments.shares, arguments.strategies, arguments.rounds)
        ratios += [entry.ratio for entry in entries]
        record.say(f"## {name}")
        head = ("strategy", "share", "budget", "predicted", "measured", "predicted / measured", "quiet steps")
        record.table(head, (entry.row for entry in entries))
    record.say(*verdict(ratios))
    if arguments.save:
        record.save(arguments.save)


def verdict(ratios: list[float]) -> Iterator[str]:
    errors = [abs(ratio - 1) for ratio in ratios]
    within = sum(error <= GOAL for error in errors)
    yield f"{len(ratios)} plans: the median of |predicted / measured - 1| is {median(errors):.3f}."
    span = f"between {min(ratios):.2f} and {max(ratios):.2f}"
    yield f"{within} of {len(ratios)} are within {GOAL:.0%}; the ratios lie {span}."


if __name__ == "__main__":
    main()
