"""Recomputation beside `torch.utils.checkpoint`: measured peak and step time, interleaved in one process.

Per network: plain eager, checkpoint per block, checkpoint in about sqrt(n) stretches, and vdnn's recompute-cost and
superneurons, the latter also at the smallest peak that a checkpointed run had: at no more bytes, is it faster? Each
round runs one step of everybody, in an order that changes; figures are ratios of medians to eager. Peaks are exact
tensor bytes, counted on separate steps.

    python benchmarks/recompute.py                   # VGG-16, ResNet-50 and a GPT-2 shaped network
    python benchmarks/recompute.py vgg16 --batch 8 --image-size 160 --rounds 5
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
from checkpointing import in_sqrt_stretches, per_block, step_with
from provenance import Record, provenance

import vdnn
from vdnn import models
from vdnn.errors import Infeasible
from vdnn.ir import Role
from vdnn.models.spec import Workload
from vdnn.runtime.tracker import StorageTracker
from vdnn.units import format_nbytes, format_seconds


@dataclass(frozen=True)
class Setting:
    model: str
    batch: int
    image_size: int | None = None


SETTINGS = (Setting("vgg16", 8, 160), Setting("resnet50", 8, 160), Setting("gpt2", 1))


@dataclass
class Contender:
    name: str
    step: Callable[..., Any]
    peak_nbytes: int
    seconds: list[float] = field(default_factory=list)


def compare(setting: Setting, rounds: int) -> list[Contender]:
    torch.manual_seed(0)
    load = models.load(setting.model, setting.batch, image_size=setting.image_size)
    contenders = list(eager_contenders(load))
    contenders += vdnn_contenders(load, min(c.peak_nbytes for c in contenders if c.name != "eager"))
    for contender in contenders:
        run_step(load, contender.step)  # warm
    for number in range(rounds):
        turn = number % len(contenders)
        for contender in contenders[turn:] + contenders[:turn]:
            contender.seconds.append(run_step(load, contender.step))
    return contenders


def eager_contenders(load: Workload) -> Iterator[Contender]:
    for name, forwards in (
        ("eager", None),
        ("checkpoint per block", per_block(load)),
        ("checkpoint sqrt(n)", in_sqrt_stretches(load)),
    ):
        step = load.step if forwards is None else step_with(load, forwards)
        yield Contender(name, step, eager_peak(load, step))


def vdnn_contenders(load: Workload, peer_peak_nbytes: int) -> Iterator[Contender]:
    wanted: list[tuple[str, dict[str, Any]]] = [
        ("vdnn keep-all", {"strategy": "keep-all"}),
        ("vdnn recompute-cost", {"strategy": "recompute-cost"}),
        ("vdnn checkpoint-sqrt", {"strategy": "checkpoint-sqrt"}),
        ("vdnn superneurons, floor", {"strategy": "superneurons"}),
        ("vdnn superneurons, peer's peak", {"strategy": "superneurons", "budget": peer_peak_nbytes}),
    ]
    for name, options in wanted:
        step = vdnn.virtualize(load.step, costs="roofline", **options)
        try:
            run_step(load, step)
        except Infeasible as reason:
            print(f"    {name}: {str(reason).splitlines()[0]}")
            continue
        measured = vdnn.report(step).measured
        assert measured is not None, "the first step was to be watched"
        yield Contender(name, step, measured.peak_nbytes)


def run_step(load: Workload, step: Callable[..., Any]) -> float:
    load.model.zero_grad(set_to_none=True)
    begin = time.perf_counter()
    step(*load.args).backward()
    return time.perf_counter() - begin


def eager_peak(load: Workload, step: Callable[..., Any]) -> int:
    load.model.zero_grad(set_to_none=True)
    tracker = StorageTracker()
    tracker.count_all((*load.model.parameters(), *load.model.buffers()), Role.PARAMETER)
    tracker.count_all(load.args, Role.INPUT)
    with tracker:
        step(*load.args).backward()
    tracker.close()
    return tracker.peak_nbytes


def rows(contenders: list[Contender]) -> Iterator[list[str]]:
    eager = next(c for c in contenders if c.name == "eager")
    for c in contenders:
        yield [
            c.name,
            format_nbytes(c.peak_nbytes),
            f"{c.peak_nbytes / eager.peak_nbytes:.3f}",
            format_seconds(median(c.seconds)),
            f"{median(c.seconds) / median(eager.seconds):.3f}",
            " ".join(f"{seconds:.2f}" for seconds in c.seconds),
        ]


HEAD = ["", "measured peak", "/ eager", "step time", "/ eager", "every trial, s"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", choices=[[], *(setting.model for setting in SETTINGS)])
    parser.add_argument("--batch", type=int, default=None)
    parser.add_argument("--image-size", type=int, default=None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--save", type=Path, default=None)
    arguments = parser.parse_args()
    record = Record()
    record.say("# Recomputation beside torch.utils.checkpoint", "", *provenance(), "")
    for usual in SETTINGS:
        if arguments.models and usual.model not in arguments.models:
            continue
        size = (arguments.image_size or usual.image_size) if usual.image_size is not None else None
        setting = Setting(usual.model, arguments.batch or usual.batch, size)
        images = "" if size is None else f", {size}×{size}"
        record.say(f"## {setting.model}, batch {setting.batch}{images}, {arguments.rounds} rounds")
        record.table(HEAD, rows(compare(setting, arguments.rounds)))
    if arguments.save:
        record.save(arguments.save)


if __name__ == "__main__":
    main()
