"""Note: [One trace at a time] in `capture/eager_kernels.py`: threads that trace at once leave torch as it was."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.fx.node import _side_effectful_functions

import vdnn

ROUNDS = 4
"""Without the lock the first round fails nearly always."""

Step = Callable[[nn.Module, torch.Tensor], torch.Tensor]


def resized() -> nn.Module:
    """Its upsampling and its matrix products are traced from kernels that are patched in."""
    larger = nn.Upsample(scale_factor=1.5, mode="bilinear")
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.Hardtanh(), larger, nn.Flatten())


def classifier() -> nn.Module:
    """The stand-in for the backward of its last layer lays its result out otherwise than the kernel."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.ELU(), nn.Linear(5, 4), nn.LogSoftmax(dim=1))


def tables_of_torch() -> dict[str, Any]:
    """All that a trace patches. An op that nobody has named yet is not listed; one without kernels need not be."""
    packets = [getattr(torch.ops.aten, name) for name in dir(torch.ops.aten) if not name.startswith("__")]
    ops = [getattr(packet, name) for packet in packets if hasattr(packet, "overloads") for name in packet.overloads()]
    return {
        "kernels": {op: dict(op.py_kernels) for op in ops if op.py_kernels},
        "stand-ins": FakeTensorMode._dispatch_impl,
        "impure": set(_side_effectful_functions),
    }


def gradients(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    loss = model(x).square().sum()
    return [loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))]


def train(make: Callable[[], nn.Module], barrier: threading.Barrier, sample: bool) -> None:
    for size in range(2, 2 + ROUNDS):
        model, x = make(), torch.randn(size, 1, 8, 8)
        expected = gradients(copy.deepcopy(model), x)
        barrier.wait(60)
        virtual = vdnn.virtualize(model, sample=(x,) if sample else None, strategy="checkpoint-sqrt")
        for found, exact in zip(gradients(virtual, x), expected, strict=True):
            assert torch.equal(found, exact)


@pytest.mark.parametrize("samples", [(True, True), (True, False), (False, False)], ids=str)
def test_two_threads_that_trace_at_once_get_their_bits_and_leave_torch_as_it_was(samples: tuple[bool, bool]) -> None:
    gradients(vdnn.virtualize(classifier()), torch.randn(2, 1, 8, 8))  # whatever a first trace imports and registers
    before, barrier = tables_of_torch(), threading.Barrier(2)
    with ThreadPoolExecutor(2) as threads:
        runs = [
            threads.submit(train, *job) for job in zip((resized, classifier), (barrier, barrier), samples, strict=True)
        ]
        for run in runs:
            run.result(timeout=120)
    assert tables_of_torch() == before


def test_two_threads_that_plan_one_module_leave_it_its_own_tensors() -> None:
    model, barrier = classifier(), threading.Barrier(2)
    before = list(model.parameters())

    def plan(size: int) -> int:
        barrier.wait(60)
        return vdnn.plan(model, (torch.empty(size, 1, 8, 8, device="meta"),)).peak_nbytes

    expected = [vdnn.plan(model, (torch.empty(size, 1, 8, 8, device="meta"),)).peak_nbytes for size in (3, 4)]
    with ThreadPoolExecutor(2) as threads:
        for _ in range(ROUNDS):
            assert list(threads.map(plan, (3, 4), timeout=120)) == expected
    assert [id(parameter) for parameter in model.parameters()] == [id(parameter) for parameter in before]


def test_a_trace_inside_a_trace_leaves_the_patches_to_the_outer_one() -> None:
    from vdnn.capture.eager_kernels import eager_kernels

    before = tables_of_torch()
    with eager_kernels():
        outer = tables_of_torch()
        with eager_kernels():
            assert tables_of_torch() == outer
        assert tables_of_torch() == outer
    assert outer != before
    assert tables_of_torch() == before
