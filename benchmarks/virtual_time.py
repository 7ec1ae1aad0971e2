"""What a budget costs behind a slow link, as the real runtime executes it in virtual time: VGG-16 with 256 images.

No accelerator is needed: the device for tests (`tests/device`) has streams, events, waits and memory of its own, and
clocks on which ops take what a preset's roofline says and copies their bytes over 12 GB/s. Sizes, arithmetic and launch
times are scaled alike (`tests/device/virtual_steps.py`), so shares of a step are those of the machine that is meant.
Beside each step stands what was simulated, and how many ops and copies came where the simulation had them.

    PYTHONPATH=tests python benchmarks/virtual_time.py
    PYTHONPATH=tests python benchmarks/virtual_time.py --machines titan-x --width 16 --save virtual.md
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from provenance import Record, provenance

import device
from device import controls
from device.virtual_steps import LANES, LINK_BYTES_PER_S, Scaled, VirtualStep, virtual_step
from vdnn.errors import Infeasible
from vdnn.units import GiB, format_nbytes

MACHINES = ("titan-x", "v100", "h100")
STRATEGIES = ("auto", "offload", "superneurons")
HEAD = (
    "machine",
    "strategy",
    "budget",
    "peak, of the real size",
    "step, of the real size",
    "lost against the oracle",
    "simulated / executed",
    "copies out and back",
    "ops and copies in another order or at another time",
)


def budgets(scaled: Scaled) -> dict[str, int | str]:
    """Twelve gigabytes in bytes, and as the share that they are of the 28 GB which the paper's framework takes."""
    return {"12 GiB": int(12 * GiB * scaled.nbytes_share), "12 of 28": f"{100 * 12 / 28:.2f}%"}


def row(scaled: Scaled, machine: str, strategy: str, said: str, step: VirtualStep, oracle: VirtualStep) -> list[str]:
    differences = step.disagreements()
    out, back = (len(step.lane(name)) for name in LANES if name != "compute")
    return [
        machine,
        strategy,
        said,
        format_nbytes(int(step.peak_nbytes / scaled.nbytes_share)),
        f"{step.seconds / scaled.nbytes_share:.3f} s",
        f"{step.seconds / oracle.seconds - 1:.1%}",
        f"{step.plan.step_time_s / step.seconds:.6f}",
        f"{out} and {back}",
        f"{len(differences)} of {len(step.spans)}",
    ]


def rows(scaled: Scaled, machines: list[str]) -> Iterator[list[str]]:
    for machine in machines:
        hardware = scaled.hardware(machine)
        oracle = virtual_step(scaled, hardware, strategy="keep-all")
        yield row(scaled, machine, "keep-all", "-", oracle, oracle)
        for strategy in STRATEGIES:
            for said, budget in budgets(scaled).items():
                try:
                    step = virtual_step(scaled, hardware, strategy=strategy, budget=budget)
                except Infeasible:
                    yield [machine, strategy, said, "does not fit", *["-"] * (len(HEAD) - 4)]
                    continue
                yield row(scaled, machine, strategy, said, step, oracle)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machines", nargs="+", default=MACHINES)
    parser.add_argument("--width", type=int, default=8, help="channels of the first group; 64 is the real network")
    parser.add_argument("--save", type=Path)
    asked = parser.parse_args()
    device.load()
    controls.reset()
    controls.set_blocking(True)
    scaled, record = Scaled(width=asked.width), Record()
    record.say("# VGG-16 with 256 images behind a link of 12 GB/s, in virtual time", "", *provenance())
    record.say(
        f"- Maps are {scaled.nbytes_share:.5f} of the real ones, and a step takes that share of the real one's time;"
        f" link {LINK_BYTES_PER_S / 1e9:.0f} GB/s each way. Bytes and seconds below are divided by it.",
        "- Not in it: workspaces of kernels, what a copy costs the compute beside it, the time of the host.",
        "- vDNN (MICRO 2016, abstract) states a loss of 18 % for VGG-16 (256), which takes 28 GB, in 12 GB of a"
        " Titan X.",
    )
    record.table(HEAD, rows(scaled, asked.machines))
    if asked.save is not None:
        record.save(asked.save)


if __name__ == "__main__":
    main()
