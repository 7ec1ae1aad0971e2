"""The headline: VGG-16 with 256 images of 224×224, one training step inside 12 GiB, and what plain PyTorch does on the
same machine.

Each runs in a process of its own with the allocator told to return freed memory at once; the peak is the kernel's own
(VmHWM). So that plain PyTorch fails to allocate rather than being killed, both get a limit of what the machine has
free, less one gibibyte.

    python benchmarks/headline.py                    # about ten minutes on two cores
    python benchmarks/headline.py --batch 64 --budget 4GiB
"""

from __future__ import annotations

import argparse
import resource
import time
from pathlib import Path
from typing import Any

import torch

import vdnn
from vdnn import models
from vdnn.api import session_of
from vdnn.plan.views.plan_figures import moved_nbytes
from vdnn.runtime.process_memory import in_child, peak_of
from vdnn.units import GiB, format_nbytes, format_seconds


def one_step(batch: int, budget: str | None, limit_nbytes: int) -> dict[str, Any]:
    """One step of VGG-16 in channels_last, virtualized when there is a budget. For a fresh process."""
    resource.setrlimit(resource.RLIMIT_DATA, (limit_nbytes, resource.RLIM_INFINITY))
    torch.manual_seed(0)
    load = models.load("vgg16", batch, channels_last=True)
    begin = time.perf_counter()
    step = load.step if budget is None else vdnn.virtualize(load.step, sample=load.args, budget=budget)
    planned_s = time.perf_counter() - begin
    losses = []

    def train() -> None:
        loss = step(*load.args)
        loss.backward()
        losses.append(loss.item())

    begin = time.perf_counter()
    try:
        peak = peak_of(train)
    except RuntimeError as failure:
        return {"failure": str(failure).splitlines()[0]}
    seconds = time.perf_counter() - begin
    state = (*load.model.parameters(), *load.args)
    resident = sum(tensor.untyped_storage().nbytes() for tensor in state)
    result = {"loss": losses[0], "seconds": seconds, "process_nbytes": resident + peak.delta_nbytes}
    if budget is not None:
        (executor,) = session_of(step).executors
        assert executor.measured.timeline is not None, "the step was to be watched"
        result |= {
            "planned_s": planned_s,
            "budget_nbytes": executor.plan.problem.budget_nbytes,
            "simulated_nbytes": executor.plan.peak_nbytes,
            "measured_nbytes": executor.measured.timeline.peak_nbytes,
            "moved_nbytes": moved_nbytes(executor.plan) // 2,  # one way
        }
    return result


def available_nbytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise OSError("no MemAvailable in /proc/meminfo")


def show(name: str, result: dict[str, Any]) -> None:
    print(f"== {name}")
    for key, value in result.items():
        words = format_nbytes(value) if key.endswith("nbytes") else value
        words = format_seconds(value) if key in ("seconds", "planned_s") else words
        print(f"   {key:18} {words}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--budget", default="12GiB")
    arguments = parser.parse_args()
    limit = available_nbytes() - GiB
    print(f"vgg16, batch {arguments.batch}, channels_last, process limit {format_nbytes(limit)}", flush=True)
    show(f"vdnn within {arguments.budget}", in_child(one_step, arguments.batch, arguments.budget, limit))
    show("plain PyTorch", in_child(one_step, arguments.batch, None, limit))


if __name__ == "__main__":
    main()
