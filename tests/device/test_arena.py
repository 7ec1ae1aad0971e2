"""Steps on an accelerator in an arena of whole blocks: reserved bytes stay within the budget, from the first step on.

The limit is one of reserved bytes, and it is the budget: whatever fragments, or lies where it was not planned, raises
torch.OutOfMemoryError here.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vdnn
from larger import all_but_larger, larger
from vdnn.api import session_of
from vdnn.errors import Infeasible
from vdnn.models import MODELS
from vdnn.plan.addresses.step_arena import step_arena
from vdnn.plan.model.surroundings import ACCELERATOR_BLOCK_NBYTES
from vdnn.runtime.executor import Executor
from vdnn.runtime.step_memory import DeviceMemory
from vdnn.runtime.step_memory.allocator import NO_SLOTS, StepAllocator
from vdnn.runtime.step_memory.library import device_library
from vdnn.units import KiB, MiB

accelerator = torch.accelerator
Step = Callable[..., Any]

BATCHES = {"resnet50": 16, "gpt2": 16, "unet": 4, "vgg16": 32}
STRATEGIES = ["auto", "offload", "superneurons", "gist"]
SMALL = [("resnet50", "auto", "50%"), ("unet", "gist", "least"), ("gpt2", "offload", "75%"), ("vgg16", "auto", "least")]
"""In every run; the others in larger ones."""

CASES = all_but_larger(
    SMALL, [(name, kind, share) for name in BATCHES for kind in STRATEGIES for share in ("75%", "50%", "least")]
)
MODES = {"slow copies": {"copy_rate": 100e6, "is_poisoned": True}, "late ops": {"delay": 200}}

QUEUED_NBYTES, QUEUED_BY_CODECS_NBYTES = 64 * KiB, MiB
"""What kernels that wait in a queue take for themselves when they run, those of codecs made of torch ops too: on no
other device does a queue allocate."""


@pytest.fixture(autouse=True)
def exact_blocks(vdev: ModuleType) -> ModuleType:
    """The allocator reserves what it is asked for, and every op has ended when its call returns."""
    vdev.set_segments(0, 0)
    vdev.set_blocking(True)
    gc.collect()
    accelerator.empty_cache()
    return vdev


def made(name: str, batch: int = 0) -> tuple[nn.Module, Step, tuple[Tensor, ...]]:
    torch.manual_seed(0)
    spec = MODELS[name].small()
    model = spec.build().to("vdev")
    return model, spec.step(model), tuple(given.to("vdev") for given in spec.sample(batch or BATCHES[name]))


def gradients(step: Step, model: nn.Module, args: tuple[Tensor, ...]) -> list[Tensor]:
    """Of three steps, on the CPU."""
    found, optimizer = [], torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        step(*args).backward()
        found += [parameter.grad.cpu() for parameter in model.parameters() if parameter.grad is not None]
        optimizer.step()
    return found


def eager_gradients(name: str) -> list[Tensor]:
    model, step, args = made(name)
    return gradients(step, model, args)


def budget_of(name: str, strategy: str, share: str) -> int:
    """In bytes. Where nothing fits the share, the budget that the refusal names; by the second time all ops are
    measured."""
    _, step, args = made(name)
    asked: str | int = "1%" if share == "least" else share
    for _ in range(3):
        try:
            virtual = vdnn.virtualize(step, sample=args, strategy=strategy, budget=asked, replan=False)
            return executor_of(virtual).plan.problem.budget_nbytes or 0
        except Infeasible as reason:
            asked = int(reason.minimum_nbytes)
    raise AssertionError(f"a budget that was named is refused: {asked}")


def executor_of(virtual: Any) -> Executor:
    (executor,) = session_of(virtual).executors
    return executor


def memory_of(virtual: Any) -> DeviceMemory:
    memory = session_of(virtual).memory
    assert isinstance(memory, DeviceMemory)
    return memory


def settle() -> None:
    gc.collect()
    accelerator.empty_cache()
    accelerator.reset_peak_memory_stats()


def require_rounded_peak(virtual: Any) -> None:
    """What is allocated at most is what was planned, with every storage rounded up."""
    plan, found = executor_of(virtual).plan, accelerator.max_memory_allocated()
    rounded_nbytes = ACCELERATOR_BLOCK_NBYTES * len(plan.problem.graph.storages)
    assert plan.peak_nbytes <= found <= plan.peak_nbytes + rounded_nbytes


@pytest.mark.parametrize(("name", "strategy", "share"), CASES)
def test_a_model_trains_where_the_device_has_no_more_than_the_budget(
    name: str, strategy: str, share: str, vdev: ModuleType
) -> None:
    expected, budget = eager_gradients(name), budget_of(name, strategy, share)
    settle()
    vdev.set_limit(budget)
    model, step, args = made(name)
    virtual = vdnn.virtualize(step, sample=args, strategy=strategy, budget=budget, replan=False)
    settle()
    found = gradients(virtual, model, args)
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    counts, arena = memory_of(virtual).counts(), step_arena(executor_of(virtual).plan)
    assert (counts.num_unexpected, counts.arena_nbytes) == (0, arena.nbytes)
    assert accelerator.max_memory_reserved() <= arena.reserved_nbytes <= budget
    require_rounded_peak(virtual)


@pytest.mark.parametrize("name", BATCHES)
def test_eager_does_not_train_in_half_of_what_keeping_everything_reserves(name: str, vdev: ModuleType) -> None:
    budget = budget_of(name, "auto", "50%")
    settle()
    vdev.set_limit(budget)
    with pytest.raises(torch.OutOfMemoryError):
        eager_gradients(name)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("name", "strategy"), [("resnet50", "offload"), *larger(("unet", "auto"), ("gpt2", "auto"), ("vgg16", "gist"))]
)
def test_copies_and_kernels_that_are_late_find_their_bytes(
    name: str, strategy: str, mode: str, vdev: ModuleType
) -> None:
    """Addresses are used again at once: only the order of the streams keeps a copy from reading what came next."""
    expected, budget = eager_gradients(name), budget_of(name, strategy, "least")
    settle()
    vdev.set_blocking(False)
    vdev.set_copy_rate(MODES[mode].get("copy_rate", 0))
    vdev.set_poison(MODES[mode].get("is_poisoned", False))
    vdev.set_delay(MODES[mode].get("delay", 0))
    vdev.set_limit(budget + (QUEUED_BY_CODECS_NBYTES if strategy == "gist" else QUEUED_NBYTES))
    model, step, args = made(name)
    virtual = vdnn.virtualize(step, sample=args, strategy=strategy, budget=budget, replan=False)
    found = gradients(virtual, model, args)
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


def trained(budget: str = "75%") -> tuple[Any, nn.Module, tuple[Tensor, ...]]:
    """After two steps, the second of which followed the first."""
    model, step, args = made("resnet50", 8)
    virtual = vdnn.virtualize(step, sample=args, budget=budget, replan=False)
    for _ in range(2):
        model.zero_grad()
        virtual(*args).backward()
    return virtual, model, args


def test_what_the_caller_holds_is_outside_of_the_arena_which_is_then_given_back() -> None:
    virtual, _, args = trained()
    loss = virtual(*args)
    loss.backward()
    arena = memory_of(virtual).arena_nbytes
    accelerator.empty_cache()
    before = accelerator.memory_reserved()
    memory_of(virtual).make_room()
    accelerator.empty_cache()
    assert arena > 0
    assert memory_of(virtual).arena_nbytes == 0
    assert accelerator.memory_reserved() == before - arena


def test_an_arena_that_was_given_back_is_there_again_in_the_next_step() -> None:
    virtual, model, args = trained()
    arena = memory_of(virtual).arena_nbytes
    memory_of(virtual).make_room()
    model.zero_grad()
    virtual(*args).backward()
    assert memory_of(virtual).arena_nbytes == arena
    assert memory_of(virtual)._allocator.counts().num_unexpected == 0


def test_who_needs_memory_between_steps_gets_that_of_the_idle_arena(vdev: ModuleType) -> None:
    virtual, model, args = trained()
    arena = memory_of(virtual).arena_nbytes
    vdev.set_limit(accelerator.memory_reserved())
    hog = torch.empty(arena, dtype=torch.uint8, device="vdev")
    assert memory_of(virtual).arena_nbytes == 0
    del hog
    model.zero_grad()
    virtual(*args).backward()
    assert memory_of(virtual).arena_nbytes == arena


def test_two_shapes_share_the_larger_arena() -> None:
    model, step, args = made("resnet50", 8)
    few = tuple(given[:4] for given in args)
    virtual = vdnn.virtualize(step, budget="6MiB", replan=False)
    sizes = []
    for given in (args, few, args, few):
        model.zero_grad()
        virtual(*given).backward()
        sizes.append(memory_of(virtual).arena_nbytes)
    assert sizes[-1] == sizes[-2] == max(sizes)


def test_a_step_on_another_stream_takes_nothing_of_the_arena() -> None:
    virtual, model, args = trained()
    allocator = memory_of(virtual)._allocator
    model.zero_grad()
    accelerator.synchronize()
    with torch.Stream("vdev"):
        virtual(*args).backward()
    assert allocator.log() == []


@pytest.mark.parametrize("records", [True, False])
def test_a_block_that_another_stream_reads_is_handed_out_after_it(vdev: ModuleType, records: bool) -> None:
    """`record_stream` of a user: without it, a stream that is late reads what came next."""
    functions = device_library("vdev").functions
    assert functions is not None
    vdev.set_blocking(False)
    allocator = StepAllocator(functions, "vdev:0")
    assert allocator.reserve(MiB)
    one, two = (torch.full((1 << 12,), value, device="vdev") for value in (1.0, 2.0))
    target, side = torch.empty_like(one), torch.Stream("vdev")
    allocator.begin_half(NO_SLOTS)
    source = torch.empty_like(one).copy_(one)
    accelerator.synchronize()
    with side:
        vdev.sleep(0.1)
        target.copy_(source)
    if records:
        source.record_stream(side)
    address = source.data_ptr()
    del source
    other = torch.empty_like(one)
    assert other.data_ptr() == address
    other.copy_(two)
    allocator.end_half([])
    accelerator.synchronize()
    assert bool((target == 1).all()) is records


def test_the_report_has_what_is_reserved_and_the_arena_with_its_waste() -> None:
    virtual, _, _ = trained()
    process = vdnn.report(virtual).process
    assert process is not None
    assert process.arena is not None
    assert process.device is not None
    arena = step_arena(executor_of(virtual).plan)
    assert (process.arena.nbytes, process.arena.num_outside) == (arena.nbytes, 0)
    assert process.arena.peak_nbytes <= arena.nbytes <= process.device.peak_reserved_nbytes
    assert process.missing == ""
