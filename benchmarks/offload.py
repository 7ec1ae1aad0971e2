"""What it costs to train within a budget: step time under `offload` over keep-all, on this machine's RAM and disk.

VGG-16 at 224² in channels_last. Steps under keep-all, at 60 % of its peak and at the smallest budget that offloading
can meet alternate in one process; the figure is the ratio of medians. Peaks are exact tensor bytes of a watched step.

    python benchmarks/offload.py                       # batch 128, the smallest at which 60 % is feasible
    python benchmarks/offload.py --batch 32 --shares 80
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

import vdnn
from vdnn import models
from vdnn.api import session_of
from vdnn.errors import Infeasible
from vdnn.models.spec import Workload
from vdnn.plan.views.plan_figures import moved_nbytes
from vdnn.units import format_nbytes, format_seconds


@dataclass(frozen=True)
class Contender:
    name: str
    step: Callable[..., Any]


def contenders(load: Workload, shares: list[int]) -> list[Contender]:
    """Keep-all, each share of its peak, and the smallest feasible budget."""
    keep = vdnn.virtualize(load.step, costs="measured")
    budgets = [f"{share}%" for share in shares]
    budgets.append(str(smallest_budget(load)))
    named = [(f"offload {budget if '%' in budget else 'minimum'}", budget) for budget in budgets]
    offloaded = (Contender(name, vdnn.virtualize(load.step, budget=b, strategy="offload")) for name, b in named)
    return [Contender("keep-all", keep), *offloaded]


def smallest_budget(load: Workload) -> int:
    try:
        vdnn.plan(load.step, load.args, budget="1B", strategy="offload", costs="measured")
    except Infeasible as reason:
        return reason.minimum_nbytes
    raise AssertionError("a budget of one byte was met")


def run_step(load: Workload, contender: Contender) -> float:
    load.model.zero_grad(set_to_none=True)
    begin = time.perf_counter()
    contender.step(*load.args).backward()
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="vgg16")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--image-size", type=int, default=None)
    parser.add_argument("--shares", type=int, nargs="*", default=[60])
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    load = models.load(arguments.model, arguments.batch, image_size=arguments.image_size, channels_last=True)
    entries = contenders(load, arguments.shares)
    for entry in entries:
        run_step(load, entry)  # captures, and counts bytes
    seconds: dict[str, list[float]] = {entry.name: [] for entry in entries}
    for _ in range(arguments.rounds):
        for entry in entries:
            seconds[entry.name].append(run_step(load, entry))
    base = median(seconds["keep-all"])
    print(f"{arguments.model}, batch {arguments.batch}, channels_last, medians of {arguments.rounds} interleaved steps")
    print(f"{'plan':18} {'budget':>12} {'peak':>12} {'moved':>12} {'step':>10} {'over keep-all':>14}")
    for entry in entries:
        (executor,) = session_of(entry.step).executors
        plan, measured = executor.plan, executor.measured.timeline
        assert measured is not None, "the first step was to be watched"
        moved = moved_nbytes(plan) // 2  # one way
        budget = plan.problem.budget_nbytes
        print(
            f"{entry.name:18} {format_nbytes(budget) if budget else '-':>12} {format_nbytes(measured.peak_nbytes):>12}"
            f" {format_nbytes(moved):>12} {format_seconds(median(seconds[entry.name])):>10}"
            f" {median(seconds[entry.name]) / base:14.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
