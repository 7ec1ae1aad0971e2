"""A tensor cache on a device that has less than its budget: what can leave leaves, and the op runs again."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn

import vdnn
from vdnn.eager.running_ops import may_run_again

ROWS, WIDTH, MANY_BYTES = 512, 256, "1GiB"


class Layers(nn.Module):
    """Decides by data, as what cannot be captured does, and draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(8))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = nn.functional.dropout(torch.tanh(layer(x)), 0.25)
        return x.square().mean()


def made() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return Layers().to("vdev"), torch.randn(ROWS, WIDTH).to("vdev")


def gradients(net: nn.Module, x: Tensor) -> list[Tensor]:
    torch.manual_seed(1)
    net(x).backward()
    found = [parameter.grad.cpu() for parameter in net.parameters() if parameter.grad is not None]
    net.zero_grad()
    return found


@contextmanager
def limited(vdev: ModuleType, nbytes: int) -> Iterator[None]:
    torch.accelerator.synchronize()
    torch.accelerator.empty_cache()
    vdev.set_limit(torch.accelerator.memory_reserved() + nbytes)
    try:
        yield
    finally:
        vdev.set_limit(None)


@pytest.fixture(autouse=True)
def exact_blocks(vdev: ModuleType) -> None:
    vdev.set_segments(0, 0)


def peak_nbytes(net: nn.Module, x: Tensor) -> int:
    gc.collect()
    before = torch.accelerator.memory_allocated()
    torch.accelerator.reset_peak_memory_stats()
    gradients(net, x)
    torch.accelerator.synchronize()
    return torch.accelerator.max_memory_allocated() - before


def test_an_op_that_runs_out_of_memory_runs_again_once_what_can_leave_has_left(vdev: ModuleType) -> None:
    net, x = made()
    expected, nbytes = gradients(net, x), peak_nbytes(net, x)
    cache = vdnn.tensor_cache(MANY_BYTES)
    with limited(vdev, nbytes // 2):
        with pytest.raises(torch.OutOfMemoryError):
            gradients(net, x)
        net.zero_grad()
        gc.collect()
        for _ in range(2):
            with cache:
                found = gradients(net, x)
            assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    assert cache.findings.num_sent > 0


def test_an_op_that_needs_more_than_the_device_has_says_so_with_numbers(vdev: ModuleType) -> None:
    with (
        limited(vdev, 1 << 20),
        vdnn.tensor_cache(MANY_BYTES),
        pytest.raises(torch.OutOfMemoryError, match=r"aten.zeros.*(\n.*)*makes 2.00 MiB(.*\n)*.*1.00 MiB free"),
    ):
        torch.zeros(2 << 20, dtype=torch.uint8, device="vdev")


def test_an_op_that_may_have_begun_to_write_is_not_run_again() -> None:
    ops = torch.ops.aten
    once = (ops.add_.Tensor, ops.native_batch_norm.default, ops.cudnn_batch_norm.default, ops.copy_.default)
    assert not any(may_run_again(op, {}) for op in once)
    assert not may_run_again(ops.randn.generator, {"generator": torch.Generator()})
    assert may_run_again(ops.mm.default, {})


def test_what_an_op_takes_inside_of_itself_is_within_the_budget_once_it_is_known(vdev: ModuleType) -> None:
    conv, x = nn.Conv2d(8, 8, 5, padding=2).to("vdev"), torch.randn(4, 8, 32, 32).to("vdev")
    cache = vdnn.tensor_cache(MANY_BYTES)
    with cache:
        conv(x).sum().backward()
    assert cache.findings.peak_nbytes > cache._live.peak_nbytes
