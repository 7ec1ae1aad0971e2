"""Under a hard limit of the operating system, set before anything is captured or planned, plain PyTorch fails to
allocate, and vdnn trains on with the same losses."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from torch import nn

import vdnn
from vdnn.cli.app import main
from vdnn.cli.limited_child import become_idle
from vdnn.errors import Infeasible, Unsupported
from vdnn.runtime.hard_limit import allowed_nbytes, enter_group, expect_limit, limit_data, remove_groups
from vdnn.runtime.process_memory import in_default_child
from vdnn.units import MiB

NUM_STEPS = 3


def convolutions() -> nn.Module:
    torch.manual_seed(0)
    layers = [layer for _ in range(14) for layer in (nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(inplace=True))]
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(inplace=True), *layers)


def losses(budget_nbytes: int | None, limit_nbytes: int | None) -> list[float]:
    """Of a few steps, through vdnn if there is a budget; the limit comes before the network."""
    torch.set_num_threads(1)
    if limit_nbytes is not None:
        expect_limit()
        become_idle()
        limit_data(limit_nbytes)
    model, images = convolutions(), torch.randn(16, 3, 128, 128)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(batch: torch.Tensor) -> torch.Tensor:
        return model(batch).square().mean()

    # This limit counts addresses, and a thread that plans again has a stack of its own.
    run = step if budget_nbytes is None else vdnn.virtualize(step, budget=budget_nbytes, replan=False)
    found = []
    for _ in range(NUM_STEPS):
        optimizer.zero_grad()
        loss = run(images)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def smallest_budget() -> int:
    model, images = convolutions(), torch.empty(16, 3, 128, 128, device="meta")
    try:
        vdnn.plan(lambda batch: model(batch).square().mean(), images, budget="1MiB", costs="tried")
    except Infeasible as reason:
        return reason.minimum_nbytes
    raise AssertionError("trains within 1 MiB")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="limits on a process's data need Linux")
def test_vdnn_trains_where_plain_pytorch_cannot_allocate() -> None:
    budget_nbytes = smallest_budget() + 24 * MiB
    limit_nbytes = allowed_nbytes(budget_nbytes)
    with pytest.raises(RuntimeError, match="allocate memory"):
        in_default_child(losses, None, limit_nbytes)
    assert in_default_child(losses, budget_nbytes, limit_nbytes) == in_default_child(losses, None, None)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="limits on a process's data need Linux")
def test_the_command_tells_who_trained_inside_the_limit(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = "train alexnet --batch 64 --steps 2 --budget 80% --limit --json"
    assert main(arguments.split()) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["schema"], record["version"]) == ("vdnn.train-limited", 1)
    assert record["equal"]
    assert record["plain"]["losses"] == []
    assert "no memory for" in record["plain"]["ended"]
    assert record["vdnn"]["losses"] == record["plain_without_limit"]["losses"]
    assert 0 < record["vdnn"]["rise_nbytes"] <= record["limit_nbytes"]


@pytest.mark.parametrize(
    ("more", "words"), [("", "name a --budget"), ("--budget 80% --verify", "leave one of them out")]
)
def test_a_limit_without_a_budget_or_beside_a_twin_is_refused(
    more: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(f"train alexnet --batch 2 --limit {more}".split()) == 2
    assert words in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("version_file", "settings"),
    [
        ("cgroup.controllers", {"memory.max": "4096", "memory.swap.max": "0"}),
        ("memory.limit_in_bytes", {"memory.limit_in_bytes": "4096"}),
    ],
)
def test_a_delegated_group_gets_a_group_with_the_limit_and_this_process(
    version_file: str, settings: dict[str, str], tmp_path: Path
) -> None:
    """Of a plain folder: what is written where. Whether the kernel follows it needs a group that is delegated."""
    (tmp_path / version_file).touch()
    enter_group(tmp_path, 4096)
    group = tmp_path / f"vdnn-{os.getpid()}"
    written = {path.name: path.read_text() for path in group.iterdir()}
    assert written == {**settings, "cgroup.procs": f"{os.getpid()}"}
    remove_groups(tmp_path)
    assert group.exists()  # somebody is in it


def test_a_group_that_cannot_be_made_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match=r"VDNN_CGROUP=.* is no control group"):
        enter_group(tmp_path / "nowhere", 4096)
