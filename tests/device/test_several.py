"""Several devices: in one process, in turns and at once, each with its budget, streams and tiers; and one per rank."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vdnn
from cpu.equivalence import executors
from device import rank_child
from device.chains import chain
from vdnn.api import session_of
from vdnn.runtime.runtime import shared_runtime
from vdnn.runtime.transfers.streams import StreamTransfers

accelerator = torch.accelerator
PLACES = ("vdev:0", "vdev:1")
BUDGETS = {"vdev:0": "75%", "vdev:1": "90%"}
OFFLOAD: dict[str, Any] = {"strategy": "offload", "hardware": "titan-x", "costs": "roofline", "replan": False}
NUM_STEPS = 4


@pytest.fixture(autouse=True)
def counted(vdev: ModuleType) -> ModuleType:
    """What earlier tests left is gone, and the bytes that an allocator reserves are those of blocks."""
    gc.collect()
    shared_runtime().close()
    vdev.set_segments(0, 0)
    return vdev


def step(
    model: nn.Module, optimizer: torch.optim.Optimizer, rows: Tensor, into: list[Tensor], call: Any = None
) -> None:
    optimizer.zero_grad()
    loss = (model if call is None else call)(rows)
    loss.backward()
    into.append(loss.detach().cpu())
    into += [parameter.grad.cpu() for parameter in model.parameters() if parameter.grad is not None]
    optimizer.step()


def expected(seed: int) -> list[Tensor]:
    """Plain, on the CPU: kernels are the same."""
    model, (rows,) = chain("cpu")
    optimizer, found = torch.optim.SGD(model.parameters(), lr=0.1), []
    for _ in range(NUM_STEPS):
        step(model, optimizer, rows * (1 + seed), found)
    return found


class Trained:
    """A virtualized model on one of the devices, whose data differ from the other's."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.model, (rows,) = chain(where)
        self.rows = rows * (1 + PLACES.index(where))
        self.virtual = vdnn.virtualize(self.model, budget=BUDGETS[where], **OFFLOAD)
        self.optimizer, self.found = torch.optim.SGD(self.model.parameters(), lr=0.1), list[Tensor]()

    def step(self) -> None:
        step(self.model, self.optimizer, self.rows, self.found, self.virtual)

    def steps(self) -> None:
        for _ in range(NUM_STEPS):
            self.step()

    def is_right(self) -> bool:
        return all(map(torch.equal, self.found, expected(PLACES.index(self.where))))


@pytest.mark.parametrize("is_blocking", [False, True])
def test_models_on_two_devices_train_in_turns_each_within_its_budget(is_blocking: bool, vdev: ModuleType) -> None:
    vdev.set_blocking(is_blocking)
    both = [Trained(where) for where in PLACES]
    for _ in range(NUM_STEPS):
        for one in both:
            accelerator.reset_peak_memory_stats(one.where)
            one.step()
            plan = executors(one.virtual)[0].plan
            assert accelerator.max_memory_allocated(one.where) <= (plan.problem.budget_nbytes or 0)
    assert all(one.is_right() for one in both)


def test_models_on_two_devices_train_at_once_in_two_threads() -> None:
    both = [Trained(where) for where in PLACES]
    with ThreadPoolExecutor(len(both)) as threads:
        list(threads.map(Trained.steps, both))
    assert all(one.is_right() for one in both)


def test_each_device_has_streams_and_tiers_of_its_own() -> None:
    both = [Trained(where) for where in PLACES]
    for one in both:
        one.step()
    tiers = [session_of(one.virtual).transfers() for one in both]
    assert all(isinstance(transfers, StreamTransfers) for transfers in tiers)
    streams = [(transfers._out.device, transfers._in.device) for transfers in tiers]
    assert streams == [(torch.device(where), torch.device(where)) for where in PLACES]
    assert tiers[0].stores["host"] is not tiers[1].stores["host"]
    copied = [sum(link.nbytes for link in session_of(one.virtual).observed_links()) for one in both]
    assert copied[0] > copied[1] > 0


def test_a_device_that_fails_does_not_stop_the_other(vdev: ModuleType) -> None:
    both = [Trained(where) for where in PLACES]
    for one in both:
        one.step()
    vdev.set_lost(True, 1)
    with pytest.raises(RuntimeError, match="vdev:1, which answers no more"):
        both[1].virtual(both[1].rows)
    for _ in range(NUM_STEPS - 1):
        both[0].step()
    assert both[0].is_right()


@pytest.mark.timeout(240)
def test_two_ranks_of_torchrun_train_on_a_device_each(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", rank_child.__file__]
    places = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": places, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    ranks = json.loads(done.stdout.strip().splitlines()[-1])
    assert [rank["where"] for rank in ranks] == list(PLACES)
    assert all(rank["equal"] and rank["on_the_other"] == 0 for rank in ranks)
