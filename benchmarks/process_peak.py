"""Are the bytes that are named the bytes that are used? The rise of the whole process over its budget.

For each network and budget a child with malloc as every user has it becomes an idle interpreter (one that has trained a
small network through vdnn), builds the network, plans it and trains. The kernel's high-water mark (VmHWM) says how far
the process rose above idle: in the first iteration, capture and planning included, and in later ones. Beside it stands
the arena over the most that lies in it. Nothing is remembered from other runs but the machine's speeds, so that every
op is tried.

Page faults are those of the whole process during a step, from what comes before its forward to the gradients that are
freed. `faults` is the most of the last three steps. Training goes on until idle pages stayed where they are in three
steps in a row: a plan that is made again has their room. `above` says how many of all steps after the first had more
than 200, those among them.

    python benchmarks/process_peak.py
    python benchmarks/process_peak.py resnet50 --batch 16 --image-size 128 --budget 50%
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch

import vdnn
from vdnn import models
from vdnn.api import session_of
from vdnn.calibrate.this_machine import this_machine
from vdnn.cli.limited_child import become_idle
from vdnn.environment import CACHE_DIR, cache_dir
from vdnn.errors import Infeasible
from vdnn.runtime.hard_limit import ALLOWED_SHARE, BESIDE_NBYTES, CONTROL_GROUP, enter_group
from vdnn.runtime.process_memory import in_default_child, reset_peak, resident
from vdnn.runtime.step_memory import StepMemory
from vdnn.units import format_nbytes

ALLOWED_NBYTES = BESIDE_NBYTES[CONTROL_GROUP]
"""What the process may rise by beside `ALLOWED_SHARE` times its budget: the interpreter's objects of the graph."""

STEADY_PAGE_FAULTS = 200
"""A step that has more is not steady."""

NUM_SETTLED, MOST_UNSETTLED = 3, 24
"""Steps in a row that keep their pages, and how many are waited for that."""

MINIMUM = "minimum"
BUDGETS = ("75%", "50%", MINIMUM)


@dataclass(frozen=True)
class Setting:
    model: str
    batch: int
    image_size: int | None
    budget: str | int = "75%"
    steady_steps: int = 6
    crop_size: int | None = None
    """Images of this side come after those steps: for the first time, then again, and the others once more."""

    unsettled_steps: int = 0
    """So many more steps at most, until pages stay where they are."""

    def load(self, **options: str) -> models.Workload:
        return models.load(self.model, self.batch, image_size=self.image_size, **options)


SETTINGS = (
    Setting("resnet50", 16, 128),
    Setting("vgg16", 16, 128),
    Setting("gpt2", 2, None),
    Setting("unet", 4, 252),
    Setting("densenet121", 16, 96),
    Setting("vit", 8, None),
)


@dataclass(frozen=True)
class Rise:
    """What a child saw. Rises are over the idle interpreter, in the first iteration and after it."""

    budget_nbytes: int
    first_nbytes: int
    steady_nbytes: int
    arena_nbytes: int
    arena_peak_nbytes: int
    num_outside: int
    num_page_faults: tuple[int, ...]
    """Of every step after the first."""

    @property
    def nbytes(self) -> int:
        return max(self.first_nbytes, self.steady_nbytes)

    @property
    def holds(self) -> bool:
        return self.nbytes <= ALLOWED_SHARE * self.budget_nbytes + ALLOWED_NBYTES


def rise_of(setting: Setting, group: Path | None = None) -> Rise:
    """To be run in a fresh process. In a control group of `group`, it is killed where it takes more than is allowed
    for the bytes that are its budget."""
    idle_nbytes = become_idle()
    if group is not None:
        assert isinstance(setting.budget, int), "a limit comes before the first plan, which says what a share is"
        enter_group(group, int(ALLOWED_SHARE * setting.budget) + ALLOWED_NBYTES)
    torch.manual_seed(0)
    workload = setting.load()
    step = vdnn.virtualize(workload.step, budget=setting.budget)

    def train(args: tuple[torch.Tensor, ...] = workload.args) -> int:
        before = page_faults()
        step(*args).backward()
        workload.model.zero_grad(set_to_none=True)
        return page_faults() - before

    train()
    memory = session_of(step).memory
    assert isinstance(memory, StepMemory), f"no arena: {memory.missing}"
    first_nbytes = peak_nbytes() - idle_nbytes
    reset_peak()
    faults, kept = [], 0
    while len(faults) < setting.steady_steps + setting.unsettled_steps:
        num_given_back = memory.num_given_back
        faults.append(train())
        kept = kept + 1 if memory.num_given_back == num_given_back else 0
        if len(faults) >= setting.steady_steps and kept >= NUM_SETTLED:
            break
    if setting.crop_size is not None:
        images, labels = workload.args
        cropped = images[:, :, : setting.crop_size, : setting.crop_size].contiguous(), labels
        for args in (cropped, cropped, cropped, workload.args):
            train(args)
    steady_nbytes = peak_nbytes() - idle_nbytes
    report = vdnn.report(step)
    assert report.budget_nbytes is not None
    assert report.process is not None
    arena = report.process.arena
    assert arena is not None, f"no arena: {report.process.missing}"
    return Rise(
        report.budget_nbytes,
        first_nbytes,
        steady_nbytes,
        arena.nbytes,
        arena.peak_nbytes,
        arena.num_outside,
        tuple(faults),
    )


def minimum_nbytes(setting: Setting) -> int:
    """The smallest budget of the step. To be run in a fresh process too: looking for it leaves something behind."""
    workload = setting.load()
    try:
        vdnn.virtualize(workload.step, sample=workload.args, budget="1MiB")
    except Infeasible as reason:
        return reason.minimum_nbytes
    raise AssertionError(f"{setting.model} trains within 1 MiB")


def page_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def peak_nbytes() -> int:
    now = resident()
    assert now is not None, "this system does not tell what a process takes"
    return now.peak_nbytes


@contextmanager
def nothing_remembered() -> Iterator[None]:
    """Children find this machine's speeds in their cache, and nothing else."""
    this_machine()
    before = cache_dir()
    with tempfile.TemporaryDirectory() as folder:
        for known in before.glob("machine*"):
            shutil.copy(known, Path(folder) / known.name)
        os.environ[CACHE_DIR] = folder
        try:
            yield
        finally:
            os.environ[CACHE_DIR] = str(before)


def measured(setting: Setting) -> str:
    """One line of the table."""
    try:
        if setting.budget == MINIMUM:
            with nothing_remembered():
                setting = replace(setting, budget=in_default_child(minimum_nbytes, setting))
        with nothing_remembered():
            rise = in_default_child(rise_of, setting)
    except Infeasible as reason:
        return f"below the minimum of {format_nbytes(reason.minimum_nbytes)}"
    beyond = rise.nbytes - ALLOWED_SHARE * rise.budget_nbytes
    faults, num_above = rise.num_page_faults, sum(each > STEADY_PAGE_FAULTS for each in rise.num_page_faults)
    return (
        f"{format_nbytes(rise.budget_nbytes):>11} {rise.first_nbytes / rise.budget_nbytes:8.3f}"
        f" {rise.steady_nbytes / rise.budget_nbytes:8.3f} {format_nbytes(max(beyond, 0)):>12}"
        f" {'yes' if rise.holds else 'NO':>5} {rise.arena_nbytes / max(rise.arena_peak_nbytes, 1):7.3f}"
        f" {rise.num_outside:8} {max(faults[-NUM_SETTLED:]):7} {f'{num_above} of {len(faults)}':>9}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--image-size", type=int)
    parser.add_argument("--budget", help=f"bytes, a share, or {MINIMUM!r}")
    arguments = parser.parse_args()
    chosen = [Setting(arguments.model, arguments.batch, arguments.image_size)] if arguments.model else SETTINGS
    chosen = [replace(setting, unsettled_steps=MOST_UNSETTLED) for setting in chosen]
    print(
        f"{'':24} {'budget':>19} {'first':>8} {'steady':>8} {'beyond 1.02x':>12} {'holds':>5} {'arena':>7}"
        f" {'outside':>8} {'faults':>7} {'above':>9}"
    )
    for setting in chosen:
        name = f"{setting.model} {setting.batch}" + (f" x {setting.image_size}²" if setting.image_size else "")
        for budget in [arguments.budget] if arguments.budget else BUDGETS:
            print(f"{name:24} {budget:>7} {measured(replace(setting, budget=budget))}", flush=True)


if __name__ == "__main__":
    main()
