"""Below the largest layer: VGG-16 in 43 % of its memory, and half of the largest single step.

The vDNN paper trains VGG-16 in 12 of 28 GB. Here the same share of keep-all's peak, with `exact=False`: step time
beside keep-all, interleaved in one process, measured peaks, and how far the gradients are off. And, planned only: is
half of the largest single step enough for VGG-16 and U-Net?

    python benchmarks/chunks.py
    python benchmarks/chunks.py --batch 32 --rounds 3
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

import torch
from provenance import Record, provenance
from recompute import run_step

import vdnn
from vdnn import models
from vdnn.errors import Infeasible
from vdnn.plan.model.bounds import minimum_budget
from vdnn.units import format_nbytes, format_seconds

SHARE = "43%"
HEAD = ["", "form", "budget", "measured peak", "step time", "/ keep-all", "gradients off by", "every trial, s"]


def compare(batch: int, image_size: int, rounds: int) -> Iterator[list[str]]:
    torch.manual_seed(0)
    load = models.load("vgg16", batch, image_size=image_size)
    kept = vdnn.virtualize(load.step, strategy="keep-all", costs="roofline")
    small = vdnn.virtualize(load.step, budget=SHARE, exact=False)
    contenders = {"keep-all": kept, f"auto, {SHARE}, exact=False": small}
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for step in contenders.values():
        run_step(load, step)  # captures, plans, and is watched
    for number in range(rounds):
        order = list(contenders) if number % 2 else list(contenders)[::-1]
        for name in order:
            seconds[name].append(run_step(load, contenders[name]))
    for name, step in contenders.items():
        report = vdnn.report(step)
        (piece,) = report.pieces
        assert piece.measured is not None, "the first step is watched"
        error = piece.gradient_error
        yield [
            name,
            form_of(piece.inexact),
            "" if report.budget_nbytes is None else format_nbytes(report.budget_nbytes),
            format_nbytes(piece.measured.peak_nbytes),
            format_seconds(median(seconds[name])),
            f"{median(seconds[name]) / median(seconds['keep-all']):.3f}",
            "" if error is None else (error.note if error.relative is None else f"{error.relative:.1e}"),
            " ".join(f"{s:.1f}" for s in seconds[name]),
        ]


def form_of(inexact: Sequence[str]) -> str:
    form, *ops = inexact or ("as traced",)
    return f"{form}; {len(ops)} ops sum in another order" if ops else form


def smallest(name: str, batch: int) -> list[str]:
    """The largest step of the traced form, and half of it: does a plan fit?"""
    load = models.load(name, batch, device="meta")
    traced = vdnn.plan(load.step, load.args, strategy="keep-all", costs="roofline")
    largest_nbytes, _ = minimum_budget(traced.problem)
    half = largest_nbytes // 2
    try:
        plan = vdnn.plan(load.step, load.args, budget=half, exact=False, costs="roofline")
        found = f"{plan.problem.form}, {format_nbytes(plan.peak_nbytes)}, {plan.step_time_s / traced.step_time_s:.3f}"
    except Infeasible as reason:
        found = f"no: {format_nbytes(reason.minimum_nbytes)}"
    return [f"{name}, batch {batch}", format_nbytes(largest_nbytes), format_nbytes(half), found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--planned-only", action="store_true")
    parser.add_argument("--save", type=Path, default=None)
    arguments = parser.parse_args()
    record = Record()
    record.say("# Below the largest layer", "", *provenance(), "")
    record.say("## Half of the largest single step (planned, roofline)", "")
    head = ["network", "largest step", "half of it", "fits in (form, peak, time / keep-all)"]
    record.table(head, [smallest("vgg16", 64), smallest("unet", 8)])
    if not arguments.planned_only:
        record.say("", f"## VGG-16, batch {arguments.batch}, {arguments.image_size}²", "")
        record.table(HEAD, compare(arguments.batch, arguments.image_size, arguments.rounds))
    if arguments.save:
        record.save(arguments.save)


if __name__ == "__main__":
    main()
