"""Does the simulated peak hold for the whole process? Storages and workspaces against the kernel's own count.

For each network a child process trains one step through vdnn, with the allocator told to give freed memory back at
once, and the kernel's high-water mark (VmHWM) is read around it. Beside it stands the simulator's peak with measured
workspaces. Both include parameters, gradients, inputs and maps; the interpreter and the libraries are outside both.

    python benchmarks/process_peak.py
    python benchmarks/process_peak.py resnet50 --batch 8 --image-size 128
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import torch

import vdnn
from vdnn import models
from vdnn.runtime.process_memory import in_child, peak_of
from vdnn.units import format_nbytes


@dataclass(frozen=True)
class Setting:
    model: str
    batch: int
    image_size: int


SETTINGS = (Setting("vgg16", 32, 224), Setting("resnet50", 32, 224))


@dataclass(frozen=True)
class PeakComparison:
    simulated_nbytes: int
    process_nbytes: int

    @property
    def ratio(self) -> float:
        return self.simulated_nbytes / self.process_nbytes


def compare_peaks(setting: Setting) -> PeakComparison:
    """To be run in a fresh process: the allocator's settings hold from its start."""
    torch.manual_seed(0)
    workload = models.load(setting.model, setting.batch, image_size=setting.image_size)
    step = vdnn.virtualize(workload.step, sample=workload.args, costs="measured")

    def train() -> None:
        step(*workload.args).backward()

    for _ in range(2):  # the watched step, and one in which the libraries allocate what they keep
        train()
        workload.model.zero_grad(set_to_none=True)
    peak = peak_of(train)
    state = (*workload.model.parameters(), *workload.model.buffers(), *workload.args)
    resident = sum(tensor.untyped_storage().nbytes() for tensor in state)
    (executor,) = vdnn.api.session_of(step).executors
    return PeakComparison(executor.plan.peak_nbytes, resident + peak.delta_nbytes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--image-size", type=int, default=128)
    arguments = parser.parse_args()
    chosen = [Setting(arguments.model, arguments.batch, arguments.image_size)] if arguments.model else SETTINGS
    print(f"{'model':10} {'batch':>5} {'image':>5} {'simulated':>12} {'process':>12} {'ratio':>7}")
    for setting in chosen:
        result = in_child(compare_peaks, setting)
        print(
            f"{setting.model:10} {setting.batch:5} {setting.image_size:5} {format_nbytes(result.simulated_nbytes):>12}"
            f" {format_nbytes(result.process_nbytes):>12} {result.ratio:7.4f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
