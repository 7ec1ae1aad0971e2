"""What a budget costs on the accelerator that is here: bytes by its allocator, time by its events, bits beside eager.

For each network a step in plain PyTorch, then through vdnn with everything kept and within shares of that, in turns.
The record says what the device is and how fast its links were measured, so that it can be read elsewhere.

    python benchmarks/accelerator.py                       # the current accelerator
    python benchmarks/accelerator.py --device cuda:1 --networks resnet50 gpt2 --save build/accelerator.md
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from provenance import Record, provenance

import vdnn
from vdnn import models
from vdnn.calibrate.accelerator_speeds import AcceleratorSpeeds, measure_accelerator
from vdnn.errors import Infeasible
from vdnn.hardware.clocks import DeviceClock
from vdnn.hardware.where import present
from vdnn.models import Workload

NETWORKS = {"resnet50": 32, "vgg16": 32, "gpt2": 4, "vit": 16}
BUDGETS = (None, "75%", "50%")
NUM_ROUNDS = 7


def step_s(workload: Workload, step: Callable[..., torch.Tensor], clock: DeviceClock) -> float:
    """Forward and backward, by the device's own clock."""
    workload.model.zero_grad(set_to_none=True)
    return clock.seconds_of(lambda: step(*workload.args).backward())


def gradients(workload: Workload, step: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    workload.model.zero_grad(set_to_none=True)
    step(*workload.args).backward()
    return [p.grad.clone() for p in workload.model.parameters() if p.grad is not None]


def peaks(workload: Workload, step: Callable[..., torch.Tensor], where: torch.device) -> tuple[int, int]:
    """Allocated and reserved at most, in one step."""
    workload.model.zero_grad(set_to_none=True)
    torch.accelerator.synchronize(where)
    torch.accelerator.empty_cache()
    torch.accelerator.reset_peak_memory_stats(where)
    step(*workload.args).backward()
    torch.accelerator.synchronize(where)
    return torch.accelerator.max_memory_allocated(where), torch.accelerator.max_memory_reserved(where)


def measure(record: Record, name: str, batch: int, budget: str | None, where: torch.device, *, small: bool) -> None:
    workload = models.load(name, batch, device=where, small=small)
    said = f"{name:10} {batch:5} {budget or 'all kept':>9}"
    try:
        ours = vdnn.virtualize(workload.step, budget=budget)
        expected, found = gradients(workload, workload.step), gradients(workload, ours)
    except (Infeasible, torch.OutOfMemoryError) as reason:
        record.say(f"{said}  {type(reason).__name__}: {str(reason).splitlines()[0]}")
        return
    is_equal = all(map(torch.equal, found, expected))
    del expected, found
    for _ in range(3):  # the first steps are watched and timed, and a better plan may come of it
        step_s(workload, ours, DeviceClock(where))
    plain_peaks, our_peaks = peaks(workload, workload.step, where), peaks(workload, ours, where)
    clock = DeviceClock(where)
    pairs = [(step_s(workload, workload.step, clock), step_s(workload, ours, clock)) for _ in range(NUM_ROUNDS)]
    plain_s, ours_s = (median(pair[side] for pair in pairs) for side in (0, 1))
    record.say(
        f"{said} {our_peaks[0] / plain_peaks[0]:10.3f} {our_peaks[1] / plain_peaks[1]:9.3f}"
        f" {our_peaks[1] / our_peaks[0]:10.3f} {ours_s / plain_s:7.2f}  {'equal' if is_equal else 'DIFFERENT'}"
    )


def describe(record: Record, speeds: AcceleratorSpeeds) -> None:
    pinned = "page-locked" if speeds.is_pinned else "ordinary (none could be page-locked)"
    record.say(
        f"- Device: {speeds.name}, {speeds.nbytes / 2**30:.2f} GiB, {speeds.gemm_flops_per_s / 1e12:.2f} TFLOP/s in"
        f" float32, copies {speeds.copy_bytes_per_s / 1e9:.1f} GB/s.",
        f"- Links, {pinned} memory, beside compute: out {speeds.to_host.bandwidth_bytes_per_s / 1e9:.2f} GB/s (drag"
        f" {speeds.to_host.drag:.0%}), back {speeds.to_device.bandwidth_bytes_per_s / 1e9:.2f} GB/s (drag"
        f" {speeds.to_device.drag:.0%}); both at once {speeds.both_to_host_bytes_per_s / 1e9:.2f} and"
        f" {speeds.both_to_device_bytes_per_s / 1e9:.2f} GB/s.",
        "",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", help="as torch names it; default: the current accelerator")
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS))
    parser.add_argument("--small", action="store_true", help="toy widths, to see that everything runs")
    parser.add_argument("--save", type=Path)
    given = parser.parse_args()
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None:
        parser.error("torch finds no accelerator here")
    where = present(given.device or accelerator.type)
    record = Record()
    record.say(*provenance(), "")
    describe(record, measure_accelerator(where))
    record.say("network    batch    budget  allocated  reserved  reserved /    time  gradients")
    record.say("                              / eager   / eager   allocated  / eager")
    for name in given.networks:
        for budget in BUDGETS:
            measure(record, name, NETWORKS.get(name, 8), budget, where, small=given.small)
    if given.save is not None:
        given.save.parent.mkdir(parents=True, exist_ok=True)
        record.save(given.save)


if __name__ == "__main__":
    main()
