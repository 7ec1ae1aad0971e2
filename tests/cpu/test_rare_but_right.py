"""Networks that few write and somebody will: each was once wrong."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from equivalence import virtualize
from tiers import DISK
from torch import Tensor, nn

from vdnn.runtime.tiers.disk import DiskStore
from where import rng_state

pytestmark = pytest.mark.any_device


def assert_trains_as_plain(model: nn.Module, *args: Tensor, **options: Any) -> None:
    """Output, gradients and the state of the random generator of one step."""
    outcomes = []
    for virtual in (False, True):
        net = copy.deepcopy(model)
        step = virtualize(net, **options) if virtual else net
        torch.manual_seed(5)
        output = step(*args)
        (output.square() + output).sum().backward()
        gradients = [parameter.grad for parameter in net.parameters() if parameter.grad is not None]
        outcomes.append([output, *gradients, rng_state()])
    assert len(outcomes[0]) == len(outcomes[1]) > 2
    assert all(map(torch.equal, *outcomes))


class PowerSpectrum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(9, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.fft.rfft(self.first(x))
        return self.second(torch.log1p((h * h.conj()).real + (h.conj().imag * 2).square()))


@pytest.mark.parametrize("strategy", ["recompute-memory", "recompute-speed", "recompute-cost", "superneurons"])
def test_a_conjugate_that_is_read_again_is_one(strategy: str) -> None:
    assert_trains_as_plain(PowerSpectrum(), torch.randn(32, 16), strategy=strategy)


class PoolsToOnePixel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(F.max_pool2d(F.relu(self.first(x)), 4)).flatten(1)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_a_window_that_is_the_whole_map_is_found_again(memory_format: torch.memory_format) -> None:
    model: Any = PoolsToOnePixel().to(memory_format=memory_format)
    assert_trains_as_plain(model, torch.randn(4, 3, 4, 4).to(memory_format=memory_format), strategy="gist")


class DrawsInVain(nn.Module):
    def __init__(self, draw: Any) -> None:
        super().__init__()
        self.layer, self.draw = nn.Linear(8, 8), draw

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x)
        self.draw(h)
        return F.dropout(h, 0.5)


@pytest.mark.parametrize("is_sampled", [True, False], ids=["ahead of time", "just in time"])
@pytest.mark.parametrize("draw", [lambda h: F.dropout(h, 0.5), torch.randn_like, lambda h: torch.randperm(9)])
def test_random_numbers_that_nobody_reads_are_drawn(draw: Any, is_sampled: bool) -> None:
    x = torch.randn(4, 8)
    assert_trains_as_plain(DrawsInVain(draw), x, **({"sample": (x,)} if is_sampled else {}))


class DividedNoise(nn.Module):
    def __init__(self, divisor: float) -> None:
        super().__init__()
        self.layer, self.divisor = nn.Linear(8, 8), divisor

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x)
        return h * torch.empty_like(h).bernoulli_(0.5).div_(self.divisor)


@pytest.mark.parametrize("divisor", [0.5, -0.5])
def test_noise_of_either_sign_is_encoded_right_or_not_at_all(divisor: float) -> None:
    assert_trains_as_plain(DividedNoise(divisor), torch.randn(64, 8), strategy="gist")


class DividesIntegers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.layers = nn.Embedding(64, 16), nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def forward(self, places: Tensor, width: Tensor) -> Tensor:
        h = self.table(places // width) + self.table(places % width)
        for layer in self.layers:
            h = torch.tanh(layer(h))
        return h


def test_integers_are_divided_within_a_budget() -> None:
    args = torch.arange(64), torch.full((64,), 8)
    assert_trains_as_plain(DividesIntegers(), *args, budget="95%", costs="measured", hardware=DISK)


def test_a_users_own_op_is_not_run_to_be_measured() -> None:
    calls: list[int] = []

    @torch.library.custom_op("vdnn_tests::counted", mutates_args=())
    def counted(x: Tensor) -> Tensor:
        calls.append(1)
        return x.clone()

    counted.register_fake(torch.empty_like)
    counted.register_autograd(lambda ctx, gradient: gradient)

    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = torch.tanh(layer(x))
            return counted(x)

    model = Counts()
    x = torch.randn(64, 16)
    virtualize(model, sample=(x,), budget="95%", costs="measured", hardware=DISK)(x).sum().backward()
    assert len(calls) == 1


def test_a_bound_on_the_disk_that_is_no_multiple_of_a_page_holds_what_it_says(tmp_path: Any) -> None:
    store = DiskStore(tmp_path, 1_000_000)
    first, _second = store.reserve(300_000), store.reserve(100_000)
    del first
    third, sent = store.reserve(800_000), torch.randint(0, 255, (800_000,), dtype=torch.uint8)
    third.write(sent)
    back = torch.empty_like(sent)
    third.read(back)
    assert torch.equal(sent, back)
    del third, _second
    store.close()
