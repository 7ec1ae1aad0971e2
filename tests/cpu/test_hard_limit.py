"""Under a hard limit of the operating system plain PyTorch fails to allocate, and vdnn trains on with the same
losses."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
import torch
from torch import nn

import vdnn
from vdnn.errors import Infeasible
from vdnn.runtime.process_memory import in_child, return_freed_memory
from vdnn.units import MiB

NUM_STEPS = 3
ROOM_NBYTES = 96 * MiB
"""Between what the network needs with everything kept (over 140 MiB) and at the smallest budget."""


def convolutions() -> nn.Module:
    torch.manual_seed(0)
    layers = [layer for _ in range(14) for layer in (nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(inplace=True))]
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(inplace=True), *layers)


def losses_under_limit(virtualized: bool) -> list[float]:
    """Losses of a few steps in at most `ROOM_NBYTES` beyond what the process has when training begins."""
    return_freed_memory()
    torch.set_num_threads(1)
    model, images = convolutions(), torch.randn(8, 3, 128, 128)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(batch: torch.Tensor) -> torch.Tensor:
        return model(batch).square().mean()

    run = step
    if virtualized:
        try:
            vdnn.plan(step, images, budget="1B", costs="measured")
        except Infeasible as reason:
            run = vdnn.virtualize(step, sample=images, budget=reason.minimum_nbytes + 16 * MiB)
        run(images).backward()  # watched, and without a limit: workers start, libraries take what they keep
    else:
        step(images[:1]).backward()
    optimizer.zero_grad()
    data_nbytes = int(Path("/proc/self/status").read_text().split("VmData:")[1].split()[0]) * 1024
    resource.setrlimit(resource.RLIMIT_DATA, (data_nbytes + ROOM_NBYTES, resource.RLIM_INFINITY))
    losses = []
    for _ in range(NUM_STEPS):
        optimizer.zero_grad()
        loss = run(images)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def losses_without_limit() -> list[float]:
    torch.set_num_threads(1)
    model, images = convolutions(), torch.randn(8, 3, 128, 128)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for _ in range(NUM_STEPS):
        optimizer.zero_grad()
        loss = model(images).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.slow
def test_vdnn_trains_where_plain_pytorch_cannot_allocate() -> None:
    if not Path("/proc/self/status").exists():
        pytest.skip("limits on a process's data need Linux")
    with pytest.raises(RuntimeError, match="allocate memory"):
        in_child(losses_under_limit, False)
    assert in_child(losses_under_limit, True) == in_child(losses_without_limit)
