"""The Pareto benchmark in small: its measure of memory is exact, its peers train what eager trains."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

import vdnn
from vdnn import models
from vdnn.models.spec import Workload
from vdnn.runtime.runtime import shared_runtime

CHAINS = ("vgg16", "resnet50", "googlenet", "densenet121", "vit", "gpt2")
WAYS = [
    *((network, way) for network in (*CHAINS, "unet") for way in ("per_block", "selective")),
    *((network, "in_sqrt_stretches") for network in CHAINS),
    ("densenet121", "per_dense_layer"),
]


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ModuleType]:
    monkeypatch.setenv("VDNN_CACHE_DIR", str(tmp_path))
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import pareto

    yield sys.modules[pareto.__name__]
    torch._dynamo.reset()


@pytest.fixture
def measuring(benchmark: ModuleType) -> ModuleType:
    return sys.modules["pareto_measure"]


@pytest.fixture
def contenders(benchmark: ModuleType) -> ModuleType:
    return sys.modules["pareto_contenders"]


@pytest.fixture
def checkpointing(benchmark: ModuleType) -> ModuleType:
    return sys.modules["checkpointing"]


@pytest.fixture
def step_memory(benchmark: ModuleType) -> ModuleType:
    return sys.modules["step_memory"]


def gradients(load: Workload, step: Any) -> list[torch.Tensor]:
    torch.manual_seed(1)
    load.model.zero_grad(set_to_none=True)
    step(*load.args).backward()
    return [parameter.grad for parameter in load.model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize(("network", "way"), WAYS)
def test_checkpointed_gradients_have_the_bits_of_eager_ones(checkpointing: ModuleType, network: str, way: str) -> None:
    load = models.load(network, 4, small=True)
    step = checkpointing.step_with(load, getattr(checkpointing, way)(load))
    plain, checkpointed = gradients(load, load.step), gradients(load, step)
    assert all(torch.equal(a, b) for a, b in zip(plain, checkpointed, strict=True))


def test_a_network_that_is_no_chain_is_not_cut_into_stretches(checkpointing: ModuleType) -> None:
    assert checkpointing.in_sqrt_stretches(models.load("unet", 1, small=True)) is None


def test_a_checkpointed_network_is_as_before_after_the_step(checkpointing: ModuleType) -> None:
    load = models.load("unet", 1, small=True)
    gradients(load, checkpointing.step_with(load, checkpointing.per_block(load)))
    assert not any("forward" in vars(module) for module in load.model.modules())


def test_the_peak_of_a_chain_of_tensors_is_known_to_the_byte(step_memory: ModuleType) -> None:
    load = Workload("one weight", nn.Linear(256, 256, bias=False), (torch.randn(64, 256),), lambda x: x)

    def train() -> None:
        first = torch.empty(100_000, dtype=torch.uint8)
        second = torch.empty(50_000, dtype=torch.uint8)
        del first
        torch.empty(70_000, dtype=torch.uint8)
        del second

    memory = step_memory.step_memory(train, load, held_nbytes=1000)
    assert memory.peak_nbytes == 4 * (256 * 256 + 64 * 256) + 1000 + 150_000
    assert memory.unreleased_nbytes == 0


def test_blocks_of_a_virtualized_step_count_as_those_of_an_eager_one(step_memory: ModuleType) -> None:
    """The arena's blocks are reported to the allocator's events, whether they were learned or not."""
    layers = [layer for _ in range(4) for layer in (nn.Linear(256, 256), nn.Tanh())]
    model, batch = nn.Sequential(*layers), torch.randn(128, 256)
    virtual = vdnn.virtualize(model)
    load = Workload("tanh", model, (batch,), lambda batch: virtual(batch).sum())

    def train() -> None:
        load.step(batch).backward()

    peaks = {step_memory.step_memory(train, load, held_nbytes=0).peak_nbytes for _ in range(4)}
    eager = step_memory.step_memory(lambda: model(batch).sum().backward(), load, held_nbytes=0)
    assert len(peaks) <= 2  # the watched step, and those at full speed
    assert max(peaks) <= eager.peak_nbytes * 1.02


def test_of_a_mapping_the_pages_that_were_touched_are_resident(step_memory: ModuleType) -> None:
    import mmap

    block = mmap.mmap(-1, 64 * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    before = step_memory.resident_nbytes(block)
    block[10 * mmap.PAGESIZE] = 1
    assert (before, step_memory.resident_nbytes(block)) == (0, mmap.PAGESIZE)


def test_a_stand_in_without_memory_counts_nothing_and_a_tensor_its_bytes(step_memory: ModuleType) -> None:
    from vdnn.runtime.running_step import phantom

    shared_runtime().close()  # lets go of memory for stand-ins that other files have left
    shape = (1024, 1024)
    before = step_memory.live_nbytes()
    stand_in = phantom(shape, (1024, 1), 0, torch.float32, torch.device("cpu"))
    assert step_memory.live_nbytes() == before
    held = torch.ones(shape)
    assert step_memory.live_nbytes() - before == held.nbytes == stand_in.nbytes


def test_a_contender_that_fails_is_a_row_with_its_error(
    benchmark: ModuleType, measuring: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(load: Workload) -> Iterator[Any]:
        def train() -> torch.Tensor:
            raise RuntimeError("no such kernel\nand a long trace")

        yield measuring.Contender("eager", "eager", train)

    monkeypatch.setattr(measuring, "eager_contenders", broken)
    entries = measuring.compare(models.load("vit", 4, small=True), measuring.Lineup(("eager",)), rounds=1)
    assert next(benchmark.rows(entries))[:2] == ["eager", "failed: RuntimeError: no such kernel"]


def test_parts_of_a_batch_add_up_to_the_gradients_of_the_whole(measuring: ModuleType, contenders: ModuleType) -> None:
    load = models.load("unet", 4, small=True)
    for module in load.model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    whole = gradients(load, load.step)
    load.model.zero_grad(set_to_none=True)
    contenders.train_in_parts(load, 4)
    parts = [parameter.grad for parameter in load.model.parameters()]
    assert measuring.relative_difference(parts, whole) < 1e-4


def test_batch_normalization_makes_accumulation_another_computation(contenders: ModuleType) -> None:
    kinds = {}
    for network in ("resnet50", "vgg16"):
        load = models.load(network, 4, small=True)
        kinds[network] = {c.is_same_step for c in contenders.accumulated(load)}
    assert kinds == {"resnet50": {False}, "vgg16": {True}}


@pytest.mark.slow
def test_a_round_measures_every_eager_contender_beside_eager(measuring: ModuleType) -> None:
    lineup = measuring.Lineup(("eager", "checkpoint", "accumulation"))
    entries = measuring.compare(models.load("resnet50", 4, small=True), lineup, rounds=2)
    assert [entry.error for entry in entries] == [""] * 6
    assert {len(entry.seconds) for entry in entries} == {2}
    by_name = {entry.name: entry for entry in entries}
    assert by_name["checkpoint per block"].difference == measuring.Difference(0.0, None, has_other_buffers=True)
    assert by_name["checkpoint per block"].point.peak_nbytes < by_name["eager"].point.peak_nbytes


@pytest.mark.parametrize(
    ("loss", "gradients", "is_wrong"),
    [(0.0, None, False), (1e-8, 1e-6, False), (0.0, 0.3, True), (0.1, 0.3, False)],
    ids=["same-bits", "rounding", "same-loss-other-gradients", "other-masks"],
)
def test_other_gradients_are_wrong_where_the_loss_is_the_same(
    measuring: ModuleType, loss: float, gradients: float | None, is_wrong: bool
) -> None:
    assert measuring.Difference(loss, gradients, has_other_buffers=False).is_wrong is is_wrong
