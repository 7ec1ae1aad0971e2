"""Networks of the zoo on an accelerator: at three quarters, at half and at the least, the gradients of plain PyTorch
there, and its allocator has no more than was planned.

Each budget is tried in two moods of the device: as it is, and with a slow link, late kernels and freed memory full of
NaN. Peaks are those of the allocator, with each storage rounded up to its blocks: `--log-level=info -rA` shows them.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from itertools import product
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch
from blocks import as_allocated, block_nbytes
from capture_once import captured_once
from equivalence import executors
from torch import Tensor, nn

import vdnn
from larger import all_but_larger
from vdnn.eager.live_bytes import LiveBytes
from vdnn.eager.tensor_cache import TensorCache
from vdnn.errors import Infeasible
from vdnn.models import MODELS
from vdnn.units import Nbytes

log = logging.getLogger(__name__)

RESERVED_BYTES_ARE_PLANNED = False
"""When the addresses of a step are planned on accelerators too, its limit on reserved bytes can be the budget."""

NETWORKS = ("vgg16", "resnet50", "googlenet", "unet", "densenet121", "gpt2", "vit", "biglstm")
STRATEGIES = ("auto", "offload", "gist", "superneurons")
BUDGETS = ("75%", "50%", "minimum")
BATCH = 8
NUM_STEPS = 2  # in each mood

FEW = (
    ("resnet50", "auto", "75%"),
    ("vit", "gist", "75%"),
    ("gpt2", "superneurons", "50%"),
    ("biglstm", "offload", "minimum"),
)
MOST_WASTE = 0.4
"""Of a budget: what an allocator may keep between the blocks of a tensor cache, which has no planned addresses."""

FEW_IN_CACHE = (("vit", "50%"),)


class Figures(NamedTuple):
    budget_nbytes: int
    planned_nbytes: int
    allocated_nbytes: int


@dataclass
class Trainee:
    model: nn.Module
    step: Callable[..., Tensor]
    args: tuple[Tensor, ...]

    def tensors(self) -> list[Tensor]:
        return [*self.model.parameters(), *self.model.buffers(), *self.args]

    def steps(self, run: Callable[..., Tensor], peaks: list[int]) -> Iterator[list[Tensor]]:
        """Loss and gradients of a few steps of training, on the CPU. `peaks` gets what each step had allocated."""
        for number in range(NUM_STEPS):
            torch.manual_seed(number)
            self.model.zero_grad()
            others_nbytes = torch.accelerator.memory_allocated() - sum(map(block_nbytes, self.tensors()))
            torch.accelerator.reset_peak_memory_stats()
            loss = run(*self.args)
            loss.backward()
            torch.accelerator.synchronize()
            peaks.append(torch.accelerator.max_memory_allocated() - others_nbytes)
            yield [loss.detach().cpu(), *(p.grad.cpu() for p in self.model.parameters() if p.grad is not None)]
            with torch.no_grad():
                for parameter in self.model.parameters():
                    if parameter.grad is not None:
                        parameter -= 0.01 * parameter.grad


def made(name: str) -> Trainee:
    torch.manual_seed(0)
    spec = MODELS[name].small()
    model = spec.build().to("vdev")
    return Trainee(model, spec.step(model), tuple(given.to("vdev") for given in spec.sample(BATCH)))


@cache
def plain(name: str) -> tuple[list[list[Tensor]], int]:
    """What plain PyTorch makes of both moods, one after the other, and its peak."""
    trainee, peaks = made(name), list[int]()
    outcome = [step for _ in range(2) for step in trainee.steps(trainee.step, peaks)]
    return outcome, max(peaks)


def as_it_is(vdev: ModuleType) -> None:
    vdev.reset()
    vdev.set_segments(0, 0)


def late(vdev: ModuleType) -> None:
    vdev.set_copy_rate(200e6)
    vdev.set_delay(50)
    vdev.set_poison(True)


MOODS = (as_it_is, late)


@contextmanager
def limited(vdev: ModuleType, nbytes: int) -> Iterator[None]:
    """The device has these bytes and no more, beside what others hold."""
    torch.accelerator.empty_cache()
    vdev.set_limit(torch.accelerator.memory_reserved() + nbytes)
    try:
        yield
    finally:
        vdev.set_limit(None)


def virtualized(trainee: Trainee, strategy: str, budget: str) -> Any:
    """At its minimum where the budget is less."""
    options: Any = {"sample": trainee.args, "strategy": strategy, "costs": "measured"}
    try:
        return vdnn.virtualize(trainee.step, budget="1B" if budget == "minimum" else budget, **options)
    except Infeasible as reason:
        return vdnn.virtualize(trainee.step, budget=reason.minimum_nbytes, **options)


def assert_equal(expected: list[list[Tensor]], found: list[list[Tensor]]) -> None:
    assert len(found) == len(expected)
    for number, (one, other) in enumerate(zip(expected, found, strict=True)):
        wrong = [at for at, (a, b) in enumerate(zip(one, other, strict=True)) if not torch.equal(a, b)]
        assert not wrong, (
            f"step {number}: {len(wrong)} of {len(one)} tensors differ, loss and gradients in order: {wrong}"
        )


def trained(
    trainee: Trainee, run: Callable[..., Tensor], vdev: ModuleType, nbytes: int
) -> tuple[list[list[Tensor]], int]:
    """The outcome of both moods within that many bytes, and the peak."""
    found: list[list[Tensor]] = []
    peaks: list[int] = []
    for mood in MOODS:
        mood(vdev)
        with limited(vdev, nbytes) if RESERVED_BYTES_ARE_PLANNED else nullcontext():
            found += trainee.steps(run, peaks)
    return found, max(peaks)


@pytest.mark.parametrize(("name", "strategy", "budget"), all_but_larger(FEW, product(NETWORKS, STRATEGIES, BUDGETS)))
def test_a_network_trains_in_the_bytes_that_were_planned(
    name: str, strategy: str, budget: str, vdev: ModuleType
) -> None:
    expected, _ = plain(name)
    trainee = made(name)
    with captured_once(name, BATCH):
        virtual = virtualized(trainee, strategy, budget)
    (executor,) = executors(virtual)
    budget_nbytes = executor.plan.problem.budget_nbytes or 0
    found, peak_nbytes = trained(trainee, virtual, vdev, budget_nbytes)
    planned_nbytes = as_allocated(executor.plan).max()
    log.info("%s, %s at %s: %s", name, strategy, budget, Figures(budget_nbytes, planned_nbytes, peak_nbytes))
    assert_equal(expected, found)
    assert peak_nbytes <= planned_nbytes <= budget_nbytes


@dataclass
class Done:
    """The loss of a step whose backward is over."""

    loss: Tensor

    def backward(self) -> None: ...

    def detach(self) -> Tensor:
        return self.loss.detach()


def cache_of(trainee: Trainee, budget_nbytes: int) -> tuple[TensorCache, int]:
    """With a budget for this training; what other tests have left on the device comes on top. And the budget so."""
    gc.collect()
    alive = LiveBytes(trainee.args[0].device)
    alive.count_everything()
    nbytes = budget_nbytes + alive.nbytes - sum(map(block_nbytes, trainee.tensors()))
    return vdnn.tensor_cache(Nbytes(nbytes)), nbytes


def inside(cache: TensorCache, step: Callable[..., Tensor]) -> Callable[..., Any]:
    def run(*args: Tensor) -> Done:
        with cache:
            loss = step(*args)
            loss.backward()
        return Done(loss)

    return run


def in_cache(trainee: Trainee, budget_nbytes: int, peaks: list[int]) -> list[list[Tensor]]:
    """The outcome of some steps. A refusal names the budget that would do."""
    cache, nbytes = cache_of(trainee, budget_nbytes)
    try:
        outcome = list(trainee.steps(inside(cache, trainee.step), peaks))
    except Infeasible as reason:
        raise Infeasible(
            str(reason), minimum_nbytes=Nbytes(budget_nbytes + max(reason.minimum_nbytes - nbytes, 1))
        ) from reason
    assert cache.findings.peak_nbytes <= nbytes
    return outcome


@pytest.mark.parametrize(("name", "budget"), all_but_larger(FEW_IN_CACHE, product(NETWORKS, BUDGETS)))
def test_a_network_trains_in_a_tensor_cache(name: str, budget: str, vdev: ModuleType) -> None:
    """At the budget, or at the least above it that is not refused: workspaces are inside. Then a fresh cache, which has
    to find out about them, on a device that has these bytes and no more, or what its allocator keeps between blocks
    on top."""
    expected, plain_nbytes = plain(name)
    budget_nbytes = 1 if budget == "minimum" else plain_nbytes * int(budget[:-1]) // 100
    as_it_is(vdev)
    peaks = list[int]()
    while True:
        try:
            assert_equal(expected[:NUM_STEPS], in_cache(made(name), budget_nbytes, peaks))
            break
        except Infeasible as reason:  # later ops may need more
            budget_nbytes = reason.minimum_nbytes
    assert peaks[-1] <= budget_nbytes
    for waste_nbytes in range(0, int(MOST_WASTE * budget_nbytes), budget_nbytes // 32):
        trainee = made(name)
        own_nbytes = sum(map(block_nbytes, trainee.tensors()))
        try:
            with limited(vdev, budget_nbytes + waste_nbytes - own_nbytes):
                found = in_cache(trainee, budget_nbytes, [])
            break
        except torch.OutOfMemoryError:
            continue
    else:
        pytest.fail(f"{name} ran out of memory with {waste_nbytes} bytes beyond a budget of {budget_nbytes}")
    figures = Figures(budget_nbytes, budget_nbytes + waste_nbytes, peaks[-1])
    log.info("%s, cache at %s: %s, eager %s", name, budget, figures, plain_nbytes)
    assert_equal(expected[:NUM_STEPS], found)


@pytest.mark.parametrize(("name", "share"), all_but_larger((("unet", 0.75),), product(NETWORKS, (0.75, 0.5))))
def test_plain_pytorch_runs_out_of_memory_in_those_bytes(name: str, share: float, vdev: ModuleType) -> None:
    _, plain_nbytes = plain(name)
    as_it_is(vdev)
    trainee = made(name)
    own_nbytes = sum(map(block_nbytes, trainee.tensors()))
    with limited(vdev, int(share * plain_nbytes) - own_nbytes), pytest.raises(torch.OutOfMemoryError):
        list(trainee.steps(trainee.step, []))
