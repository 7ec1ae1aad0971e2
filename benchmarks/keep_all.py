"""What running through vdnn costs when nothing is saved: step time and storage peak of keep-all over plain eager
PyTorch.

Eager and vdnn steps alternate in one process, so that whatever else the machine does falls on both; the figure is the
ratio of medians. Peaks are exact tensor bytes (parameters, gradients, inputs, feature maps), counted on separate steps,
because counting is slow.

    python benchmarks/keep_all.py                  # the three networks of the README's table
    python benchmarks/keep_all.py vgg16 --batch 4
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
from vdnn.ir import Role
from vdnn.models.spec import Workload
from vdnn.runtime.tracker import StorageTracker
from vdnn.units import format_nbytes, format_seconds


@dataclass(frozen=True)
class Setting:
    model: str
    batch: int
    image_size: int | None = None


SETTINGS = (Setting("vgg16", 4, 224), Setting("resnet50", 8, 224), Setting("gpt2", 2))


@dataclass(frozen=True)
class Comparison:
    setting: Setting
    eager_s: float
    vdnn_s: float
    eager_peak_nbytes: int
    vdnn_peak_nbytes: int

    @property
    def time_ratio(self) -> float:
        return self.vdnn_s / self.eager_s

    @property
    def peak_ratio(self) -> float:
        return self.vdnn_peak_nbytes / self.eager_peak_nbytes


def compare(setting: Setting, rounds: int) -> Comparison:
    torch.manual_seed(0)
    load = models.load(setting.model, setting.batch, image_size=setting.image_size)
    plain = load.step
    virtual = vdnn.virtualize(load.step)
    run_step(load, virtual)  # captures, and counts bytes
    run_step(load, plain)
    measured = vdnn.report(virtual).measured
    assert measured is not None, "the first step was to be watched"
    eager_s: list[float] = []
    vdnn_s: list[float] = []
    for number in range(rounds):  # each goes first every other time: what one leaves in the caches helps the next
        for is_plain in (True, False) if number % 2 else (False, True):
            (eager_s if is_plain else vdnn_s).append(run_step(load, plain if is_plain else virtual))
    return Comparison(setting, median(eager_s), median(vdnn_s), eager_peak(load), measured.peak_nbytes)


def run_step(load: Workload, step: Callable[..., Any]) -> float:
    load.model.zero_grad(set_to_none=True)
    begin = time.perf_counter()
    step(*load.args).backward()
    return time.perf_counter() - begin


def eager_peak(load: Workload) -> int:
    """The most bytes that tensors take at once in a plain step."""
    load.model.zero_grad(set_to_none=True)
    tracker = StorageTracker()
    tracker.count_all((*load.model.parameters(), *load.model.buffers()), Role.PARAMETER)
    tracker.count_all(load.args, Role.INPUT)
    with tracker:
        load.step(*load.args).backward()
    tracker.close()
    return tracker.peak_nbytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--image-size", type=int, default=None)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    chosen = [Setting(name, arguments.batch, arguments.image_size) for name in arguments.models] or list(SETTINGS)
    print(
        f"{'model':12} {'batch':>5} {'eager':>10} {'vdnn':>10} {'time':>6} {'eager peak':>12} {'vdnn peak':>12}"
        f" {'peak':>6}"
    )
    for setting in chosen:
        result = compare(setting, arguments.rounds)
        print(
            f"{setting.model:12} {setting.batch:5} {format_seconds(result.eager_s):>10}"
            f" {format_seconds(result.vdnn_s):>10}"
            f" {result.time_ratio:6.3f} {format_nbytes(result.eager_peak_nbytes):>12}"
            f" {format_nbytes(result.vdnn_peak_nbytes):>12}"
            f" {result.peak_ratio:6.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
