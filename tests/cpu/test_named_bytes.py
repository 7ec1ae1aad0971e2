"""The bytes that are named are the bytes that the process takes: by the kernel's count, and where the kernel kills
whoever takes more. Each network runs in children with malloc as every user has it."""

from __future__ import annotations

import sys
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest
from control_group import group as group  # a fixture

from vdnn.cli.limited_child import become_idle
from vdnn.runtime.hard_limit import ALLOWED_SHARE, BESIDE_NBYTES, CONTROL_GROUP, enter_group
from vdnn.runtime.process_memory import in_default_child
from vdnn.runtime.step_memory.library import step_library
from vdnn.units import MiB

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from process_peak import Setting, nothing_remembered, rise_of

ALLOWED_NBYTES = BESIDE_NBYTES[CONTROL_GROUP]
SETTINGS = {
    "ResNet-50": Setting("resnet50", 16, 128, 330 * MiB, 6),
    "ResNet-50, and smaller images": Setting("resnet50", 16, 128, 360 * MiB, 4, crop_size=112),
    "VGG-16": Setting("vgg16", 8, 128, 1210 * MiB, 4),
    "GPT-2": Setting("gpt2", 1, None, 1700 * MiB, 2),
    "U-Net": Setting("unet", 4, 188, 390 * MiB, 4),
    "DenseNet": Setting("densenet121", 16, 96, 240 * MiB, 6),
    "ViT": Setting("vit", 4, None, 780 * MiB, 3),
}


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux tells what a process takes")
@pytest.mark.parametrize("network", SETTINGS)
def test_a_process_rises_by_its_budget_and_little_more_planning_included(network: str, group: Path | None) -> None:
    """Where control groups can be made, the kernel kills whoever takes more."""
    if step_library().functions is None:
        pytest.skip(step_library().missing)
    setting = SETTINGS[network]
    with nothing_remembered():
        found = in_default_child(rise_of, setting, group)
    assert found.budget_nbytes == setting.budget
    allowed_nbytes = ALLOWED_SHARE * found.budget_nbytes + ALLOWED_NBYTES
    assert found.first_nbytes <= allowed_nbytes
    assert found.steady_nbytes <= allowed_nbytes
    assert found.num_outside == 0, "blocks without a planned place"
    if setting.crop_size is None:  # else the arena is that of the shape which needs most
        assert found.arena_nbytes <= 1.03 * found.arena_peak_nbytes
    if group is None:
        pytest.skip("the process rose by no more; no control group can be made here to hold it to that")


@pytest.mark.slow
def test_plain_pytorch_is_killed_in_such_a_group(group: Path | None) -> None:
    """The limit is one: the same network with everything kept takes more than the group has."""
    if group is None:
        pytest.skip("no control group with a limit of memory can be made here")
    with pytest.raises(BrokenProcessPool):
        in_default_child(train_plainly, SETTINGS["ResNet-50"], group)


def train_plainly(setting: Setting, group: Path) -> None:
    assert isinstance(setting.budget, int)
    become_idle()
    enter_group(group, int(ALLOWED_SHARE * setting.budget) + ALLOWED_NBYTES)
    workload = setting.load()
    workload.step(*workload.args).backward()
