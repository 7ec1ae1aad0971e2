"""How soon does training begin within a budget, and how soon is it as fast as it gets?

With an empty cache: the seconds up to the end of the first step, those of a second shape, and the step times after ten
steps beside those of a plan made from full measurements (`costs="measured"`), in turns in one process. Then the disk is
slowed down in mid-training, and the step is compared with one whose plan was made for such a disk.

    python benchmarks/ready.py                              # ResNet-50, 16 images of 128², 50 %
    python benchmarks/ready.py --batch 8 --size 64 --budget 70%
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from provenance import Record, provenance
from quiet import wait_until_quiet

import vdnn
from vdnn import models
from vdnn.api import session_of
from vdnn.environment import CACHE_DIR
from vdnn.models.spec import Workload
from vdnn.options import Options

NUM_STEPS = 10
SLOW_DISK_BYTES_PER_S = 50e6
STEPS_TO_RECOVER = 5
COMPARED_STEPS = 7


def step_s(workload: Workload, step: Callable[..., torch.Tensor]) -> float:
    workload.model.zero_grad()
    begin = time.perf_counter()
    step(*workload.args).backward()
    return time.perf_counter() - begin


def in_turns(workload: Workload, one: Any, other: Any) -> tuple[float, float]:
    """Median step times: what slows the machine down slows both."""
    pairs = [(step_s(workload, one), step_s(workload, other)) for _ in range(COMPARED_STEPS)]
    return median(pair[0] for pair in pairs), median(pair[1] for pair in pairs)


def slow_disk(step: Any, bytes_per_s: float) -> None:
    session_of(step).transfers().throttle["disk"] = bytes_per_s  # type: ignore[attr-defined]


def measure(record: Record, name: str, batch: int, size: int, budget: str) -> None:
    load, other = (models.load(name, batch, image_size=side) for side in (size, size + 16))
    plain_s = min(step_s(load, load.step) for _ in range(3))
    wait_until_quiet(30)
    begin = time.perf_counter()
    quick = vdnn.virtualize(load.step, budget=budget)
    step_s(load, quick)
    record.say(f"first step done after {time.perf_counter() - begin:.1f} s; a plain step takes {plain_s:.2f} s")
    steps = [step_s(load, quick) for _ in range(NUM_STEPS - 1)]
    record.say(f"steps 2 to {NUM_STEPS}: {', '.join(f'{s:.2f}' for s in steps)} s")
    record.say(f"a second shape: first step done after {step_s(other, quick):.1f} s, as it is, in a tensor cache")
    record.say(f"when it comes back: captured, planned and a step done after {step_s(other, quick):.1f} s")
    begin = time.perf_counter()
    thorough = vdnn.virtualize(load.step, budget=budget, costs="measured", replan=False)
    step_s(load, thorough)
    record.say(f"first step with costs='measured': {time.perf_counter() - begin:.1f} s")
    step_s(load, thorough)
    ours_s, theirs_s = in_turns(load, quick, thorough)
    words = f"after {NUM_STEPS} steps {ours_s:.3f} s, with full measurements {theirs_s:.3f} s"
    record.say(f"{words}: {ours_s / theirs_s:.3f}")
    slow_down(record, load, quick, budget)


def slow_down(record: Record, load: Workload, quick: Any, budget: str) -> None:
    """Both models share the tiers, and with them the slow disk."""
    machine = Options().machine
    links = tuple(replace(link, bandwidth_bytes_per_s=SLOW_DISK_BYTES_PER_S) for link in machine.links)
    slow_disk(quick, SLOW_DISK_BYTES_PER_S)
    steps = [step_s(load, quick) for _ in range(STEPS_TO_RECOVER)]
    record.say(f"disk at {SLOW_DISK_BYTES_PER_S / 1e6:.0f} MB/s: {', '.join(f'{s:.2f}' for s in steps)} s")
    best = vdnn.virtualize(load.step, budget=budget, costs="measured", hardware=replace(machine, links=links))
    for _ in range(2):
        step_s(load, best)
    slow_disk(best, SLOW_DISK_BYTES_PER_S)
    ours_s, theirs_s = in_turns(load, quick, best)
    record.say(f"then {ours_s:.3f} s, a plan for such a disk {theirs_s:.3f} s: {ours_s / theirs_s:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--budget", default="50%")
    parser.add_argument("--save", type=Path)
    given = parser.parse_args()
    record = Record()
    record.say(*provenance(), "")
    with tempfile.TemporaryDirectory() as cache:
        os.environ[CACHE_DIR] = cache
        measure(record, given.model, given.batch, given.size, given.budget)
    if given.save is not None:
        record.save(given.save)


if __name__ == "__main__":
    main()
