"""What writing results over dead inputs saves: the peak of keep-all, and the smallest budget that offloading can meet.

Each network is planned twice, with and without the pass (`capture/tidy/in_place.py`), and nothing is allocated: the
figures are planned bytes of tensors, which the tests hold to the measured ones to the byte. The smallest budget is the
working set of the hungriest single op, which is what every form of the pass acts on; keep-all's peak only sees those
near it.

    python benchmarks/in_place.py                  # the networks of the table
    python benchmarks/in_place.py gpt2 --batch 4
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from unittest.mock import patch

import vdnn
from vdnn import models
from vdnn.environment import SKIP_PASSES
from vdnn.plan.model.bounds import minimum_budget
from vdnn.units import format_nbytes

BATCHES = {
    "alexnet": 128, "vgg16": 32, "googlenet": 32, "resnet50": 32, "inception-v3": 32, "densenet121": 32, "unet": 4,
    "vit": 32, "gpt2": 2, "gnmt": 32, "biglstm": 32,
}  # fmt: skip


@dataclass(frozen=True)
class Need:
    """Of one network, planned one way."""

    peak_nbytes: int
    smallest_budget: int


@contextmanager
def everything_functional() -> Iterator[None]:
    """Graphs that are captured in here stay as the tracer left them."""
    with patch.dict(os.environ, {SKIP_PASSES: "in-place"}):
        yield


def needed(model: str, batch: int) -> Need:
    load = models.load(model, batch, device="meta")
    plan = vdnn.plan(load.step, load.args, hardware="titan-x", strategy="keep-all")
    return Need(plan.peak_nbytes, minimum_budget(plan.problem)[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--batch", type=int)
    arguments = parser.parse_args()
    print(f"{'model':14} {'batch':>5} {'functional':>12} {'in place':>12} {'ratio':>6}", end="")
    print(f" {'smallest':>12} {'in place':>12} {'ratio':>6}")
    for model in arguments.models or BATCHES:
        batch = arguments.batch or BATCHES.get(model, 4)
        with everything_functional():
            before = needed(model, batch)
        after = needed(model, batch)
        print(f"{model:14} {batch:5}", end="")
        for one, other in ((before.peak_nbytes, after.peak_nbytes), (before.smallest_budget, after.smallest_budget)):
            print(f" {format_nbytes(one):>12} {format_nbytes(other):>12} {other / one:6.3f}", end="")
        print(flush=True)


if __name__ == "__main__":
    main()
