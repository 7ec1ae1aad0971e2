"""The children of `vdnn train --limit`: an interpreter that is idle, then limited, then trains.

Enters: a `LimitedJob`, by pickle. Leaves: a `ChildRun`, or the error that ended it. What an idle interpreter takes is
what it takes once a small network has trained through vdnn: everything is loaded that training loads.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from vdnn.api import virtualize
from vdnn.cli.arguments import ImageOptions
from vdnn.cli.training import Trainee, make_optimizer, train_steps
from vdnn.compile.planned_step import problem_of
from vdnn.models import load
from vdnn.options import Options
from vdnn.runtime.hard_limit import expect_limit, limit_growth
from vdnn.runtime.process_memory import reset_peak, resident, return_free_heap

IDLE_STEPS = 3  # the first is captured, the second is laid out, the third runs as all others


@dataclass(frozen=True)
class LimitedJob:
    """What a child trains, and within what. `options` None: plain PyTorch. `limit_nbytes` None: no limit; otherwise
    what the process may take beyond an idle interpreter."""

    model: str
    batch: int
    images: ImageOptions
    steps: int
    optimizer: str
    lr: float
    seed: int
    options: Mapping[str, Any] | None = None
    limit_nbytes: int | None = None


@dataclass(frozen=True)
class ChildRun:
    """What came of it: losses, what the idle interpreter had, and how far the process rose above it."""

    losses: tuple[float, ...] = field(default=())
    idle_nbytes: int = 0
    rise_nbytes: int = 0


def train_in_child(job: LimitedJob) -> ChildRun:
    """Runs in a fresh process."""
    with redirect_stdout(sys.stderr):  # stdout is the command's
        if job.limit_nbytes is not None:
            expect_limit()
        idle_nbytes = become_idle()
        if job.limit_nbytes is not None:
            limit_growth(job.limit_nbytes)
        losses = _train(job)
    now = resident()
    return ChildRun(losses, idle_nbytes, 0 if now is None else max(now.peak_nbytes - idle_nbytes, 0))


def become_idle() -> int:
    """Load what training loads, by training a small network; resident bytes after it. The peak counts from here.

    What malloc has free goes back first: training would begin in it, and its rise would be that much too small."""
    layers = [layer for _ in range(3) for layer in (nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU())]
    virtual = virtualize(nn.Sequential(*layers), budget="95%")
    for _ in range(IDLE_STEPS):
        virtual(torch.randn(2, 3, 32, 32)).sum().backward()
    del layers, virtual
    gc.collect()
    return_free_heap()
    reset_peak()
    now = resident()
    return 0 if now is None else now.now_nbytes


def budget_in_child(job: LimitedJob) -> int:
    """The bytes of a budget that was named as a share. Nothing is allocated but single ops that are tried."""
    with redirect_stdout(sys.stderr):
        workload = load(job.model, job.batch, device="meta", **job.images)
        options = Options(**dict(job.options or {})).on_known_machine()
        found = problem_of(workload.step, workload.args, {}, options).budget_nbytes
    assert found is not None, "a budget was named"
    return found


def _train(job: LimitedJob) -> tuple[float, ...]:
    torch.manual_seed(job.seed)
    workload = load(job.model, job.batch, **job.images)
    step: Callable[..., Any] = workload.step
    if job.options is not None:
        step = virtualize(step, **dict(job.options))
    trainee = Trainee(workload.model, step, workload.args, make_optimizer(job.optimizer, workload.model, job.lr))
    return train_steps(trainee, job.steps, lambda _: None).losses
