"""Which card does this training run need? Planned on a laptop: the network exists as shapes only, nothing is allocated.

python examples/plan_before_buying.py
python examples/plan_before_buying.py vgg16 --batch 256 --optimizer momentum --devices titan-x rtx-4090 h100
"""

from __future__ import annotations

import argparse

import vdnn
from vdnn.hardware.presets import PRESETS
from vdnn.plan import Plan
from vdnn.units import format_nbytes, format_seconds


def plan_on(device: str, model: str, batch: int, optimizer: str) -> Plan:
    workload = vdnn.models.load(model, batch, device="meta")
    return vdnn.plan(workload.step, workload.args, hardware=device, optimizer=optimizer)


def verdict(plan: Plan) -> str:
    """A whole number on the device's side is what its data sheet says; the driver's share is not taken off."""
    capacity = plan.problem.hardware.device.nbytes
    assert capacity is not None, f"{plan.problem.hardware.name} says nothing about its memory"
    return "fits" if plan.peak_nbytes <= capacity else f"misses {format_nbytes(plan.peak_nbytes - capacity)}"


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="gpt2")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--optimizer", default="adam")
    parser.add_argument("--devices", nargs="+", default=["titan-x", "v100", "a100-80gb"], choices=list(PRESETS))
    options = parser.parse_args(argv)

    print(f"{options.model}, batch {options.batch}, {options.optimizer}, everything kept")
    print(f"{'device':12} {'memory':>10} {'peak':>10} {'step, at best':>14}  verdict")
    for device in options.devices:
        plan = plan_on(device, options.model, options.batch, options.optimizer)
        memory = format_nbytes(plan.problem.hardware.device.nbytes or 0)
        times = format_seconds(plan.step_time_s)
        print(f"{device:12} {memory:>10} {format_nbytes(plan.peak_nbytes):>10} {times:>14}  {verdict(plan)}")


if __name__ == "__main__":
    main()
