"""Steps in one arena: the same bits whatever the caller keeps, no page fault once an iteration is learned, and nothing
of the caller's inside."""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from forked import exit_code_of
from torch import Tensor, nn

import vdnn
from vdnn.api import session_of
from vdnn.report.process_part import ProcessPart
from vdnn.runtime.process_memory import in_child, status_nbytes
from vdnn.runtime.step_memory import StepMemory, UnplannedMemory, returned_memory
from vdnn.runtime.step_memory.allocator import NO_SLOTS, Slots, StepAllocator
from vdnn.runtime.step_memory.library import begin_step_library, step_library
from vdnn.units import MiB
from where import seeded

NUM_STEPS = 6
_PR_SET_THP_DISABLE = 41  # linux/prctl.h
Train = Callable[[nn.Module, int], Iterator[Tensor]]


@pytest.fixture(autouse=True)
def library() -> Any:
    found = step_library()
    if found.functions is None:
        pytest.skip(f"no planned addresses here: {found.missing}")
    return found.functions


def network() -> nn.Sequential:
    """Maps of 64 to 256 KiB, kept, dropped and written in place."""
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (nn.Linear(256, 256), nn.LayerNorm(256), nn.GELU(), nn.Dropout(0.1))]
    return nn.Sequential(nn.Linear(64, 256), *layers, nn.Linear(256, 128))


def batch(step: int, rows: int = 128) -> Tensor:
    return torch.randn(rows, 64, generator=seeded(step))


def clear(model: nn.Module) -> None:
    model.zero_grad(set_to_none=True)


def gradients_first(model: nn.Module, step: int) -> Iterator[Tensor]:
    clear(model)
    model(batch(step)).square().mean().backward()
    yield from gradients(model)


def gradients_after_forward(model: nn.Module, step: int) -> Iterator[Tensor]:
    loss = model(batch(step)).square().mean()
    clear(model)
    loss.backward()
    yield from gradients(model)


def accumulated(model: nn.Module, step: int) -> Iterator[Tensor]:
    if step % 3 == 0:
        clear(model)
    model(batch(step)).square().mean().backward()
    yield from gradients(model)


def two_in_flight(model: nn.Module, step: int) -> Iterator[Tensor]:
    clear(model)
    losses = [model(batch(2 * step + k)).square().mean() for k in range(2)]
    for loss in losses:
        loss.backward()
    yield from gradients(model)


def retained(model: nn.Module, step: int) -> Iterator[Tensor]:
    clear(model)
    loss = model(batch(step)).square().mean()
    loss.backward(retain_graph=True)
    yield from gradients(model)
    loss.backward()
    yield from gradients(model)


def two_shapes(model: nn.Module, step: int) -> Iterator[Tensor]:
    clear(model)
    model(batch(step, rows=128 if step % 2 else 96)).square().mean().backward()
    yield from gradients(model)


def in_another_thread(model: nn.Module, step: int) -> Iterator[Tensor]:
    clear(model)
    loss = model(batch(step)).square().mean()
    thread = threading.Thread(target=loss.backward)
    thread.start()
    thread.join()
    yield from gradients(model)


def a_forward_without_backward(model: nn.Module, step: int) -> Iterator[Tensor]:
    if step % 2:
        yield model(batch(step + 100))
    yield from gradients_first(model, step)


def wide_loss(output: Tensor) -> Tensor:
    """Takes eight times what the output takes, outside of the model."""
    return (output @ torch.ones(128, 1024)).softmax(dim=1).square().mean()


def loss_outside(model: nn.Module, step: int) -> Iterator[Tensor]:
    clear(model)
    wide_loss(model(batch(step))).backward()
    yield from gradients(model)


def gradients(model: nn.Module) -> list[Tensor]:
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def trained(model: nn.Module, train: Train, *, copied: bool) -> list[list[Tensor]]:
    """What each step yields: as it lies there, or copied at once."""
    torch.manual_seed(1)
    return [[found.clone() if copied else found for found in train(model, step)] for step in range(NUM_STEPS)]


WAYS = (
    gradients_first,
    gradients_after_forward,
    accumulated,
    two_in_flight,
    retained,
    two_shapes,
    in_another_thread,
    a_forward_without_backward,
    loss_outside,
)


@pytest.mark.parametrize("train", WAYS, ids=lambda way: way.__name__)
def test_every_way_to_train_has_the_bits_of_plain_pytorch(train: Train) -> None:
    plain, virtual = network(), vdnn.virtualize(network())
    for expected, found in zip(trained(plain, train, copied=True), trained(virtual, train, copied=True), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


def test_what_the_caller_keeps_is_never_written_over() -> None:
    """Every gradient and output of every step stays in the caller's hands, while later steps run."""

    def outputs_and_gradients(model: nn.Module, step: int) -> Iterator[Tensor]:
        clear(model)
        output = model(batch(step))
        output.square().mean().backward()
        yield output.detach()
        yield from gradients(model)

    kept = trained(vdnn.virtualize(network()), outputs_and_gradients, copied=False)
    expected = trained(network(), outputs_and_gradients, copied=True)
    assert all(
        torch.equal(a, b) for one, other in zip(kept, expected, strict=True) for a, b in zip(one, other, strict=True)
    )


def test_what_a_saved_tensor_hook_keeps_is_never_written_over() -> None:
    virtual, seen = vdnn.virtualize(network()), []

    def pack(saved: Tensor) -> Tensor:
        seen.append((saved, saved.detach().clone()))
        return saved

    for step in range(NUM_STEPS):
        clear(virtual)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
            virtual(batch(step)).square().mean().backward()
    changed = [
        k for k, (tensor, copy) in enumerate(seen) if tensor.dtype.is_floating_point and not torch.equal(tensor, copy)
    ]
    assert seen
    assert not changed


def test_a_learned_iteration_asks_nobody_for_memory() -> None:
    virtual = vdnn.virtualize(network())
    for step in range(NUM_STEPS):
        list(gradients_first(virtual, step))
    counts = session_of(virtual).memory.counts()
    assert counts is not None
    assert (counts.num_unexpected, counts.unexpected_nbytes, counts.num_moves_refused) == (0, 0, 0)
    assert counts.num_planned > 20
    assert counts.num_page_faults <= 20
    assert counts.arena_peak_nbytes <= counts.arena_nbytes <= 1.01 * counts.arena_peak_nbytes
    process = vdnn.report(virtual).process
    assert process is not None
    assert process.arena is not None
    assert (process.arena.nbytes, process.arena.num_outside) == (counts.arena_nbytes, 0)
    assert process.before_nbytes <= process.peak_before_nbytes <= process.peak_nbytes
    assert not process.missing


@pytest.fixture
def small_pages() -> Iterator[None]:
    """A huge page is one fault: pages that are given back show as many where all are small."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is None or prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0) != 0:
        pytest.skip("pages cannot be kept small here")
    yield
    prctl(_PR_SET_THP_DISABLE, 0, 0, 0, 0)


@pytest.mark.usefixtures("small_pages")
def test_training_within_a_budget_faults_pages_in_a_handful_of_its_steps() -> None:
    """By the kernel's count of the whole process, from zeroed gradients to backward's end: in the first steps, and in
    those for which a plan was made again. Beside other processes too, where steps take now this long and now that."""
    virtual, faults = vdnn.virtualize(network(), budget="80%"), []
    for step in range(30):
        rows, before = batch(step, 2048), resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        clear(virtual)
        virtual(rows).sum().backward()
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    arena_nbytes = session_of(virtual).memory.arena_nbytes
    assert arena_nbytes > 1000 * resource.getpagesize(), "an arena that is given back shows"
    assert sum(each > 200 for each in faults) <= 8, faults


def test_gradients_that_are_added_up_later_than_in_the_first_step_fault_no_page() -> None:
    """Those of the step that begins a sum lie where the next step was to run. All was as planned in the step itself,
    and that next step does not show what took its places."""
    virtual, counts = vdnn.virtualize(network()), []
    memory = session_of(virtual).memory
    for step in range(30):
        if step % 10 in (0, 1):  # the first step alone, then sums of one and of nine
            clear(virtual)
        virtual(batch(step)).square().mean().backward()
        counts.append(memory.counts())  # of the step before
    assert max(found.num_unexpected for found in counts[4:9]) > 0, "which is to be learned"
    assert max(found.num_unexpected for found in counts[-5:]) == 0
    assert max(found.num_page_faults for found in counts[-5:]) <= 20


def test_a_loss_outside_takes_idle_pages_of_the_arena() -> None:
    """It does not lie beside them: the arena is as large as what is alive at once, and nobody is asked for more."""
    virtual = vdnn.virtualize(network())
    for step in range(NUM_STEPS):
        list(loss_outside(virtual, step))
    memory = session_of(virtual).memory
    counts = memory.counts()
    assert memory.outside_nbytes >= 3 * 128 * 1024 * 4, "product, softmax and square are alive together"
    assert (counts.num_unexpected, counts.num_moves_refused) == (0, 0)
    assert counts.num_page_faults <= 20
    inside = vdnn.virtualize(network())
    for step in range(NUM_STEPS):
        list(gradients_first(inside, step))
    beside_nbytes = counts.arena_nbytes - session_of(inside).memory.counts().arena_nbytes
    assert beside_nbytes < memory.outside_nbytes, "gradients come when the loss is gone, and have its pages"


def test_what_a_caller_keeps_of_a_loss_outside_is_never_written_over() -> None:
    """Every second step keeps what it computed between its halves, when all places have been learned."""

    def kept_now_and_then(model: nn.Module, step: int) -> Iterator[Tensor]:
        clear(model)
        wide = model(batch(step)) @ torch.ones(128, 1024)
        wide.square().mean().backward()
        if step % 2:
            yield wide.detach()
        yield from gradients(model)

    kept = trained(vdnn.virtualize(network()), kept_now_and_then, copied=False)
    expected = trained(network(), kept_now_and_then, copied=True)
    assert all(
        torch.equal(a, b) for one, other in zip(kept, expected, strict=True) for a, b in zip(one, other, strict=True)
    )


def test_a_forward_whose_backward_never_comes_does_not_log_for_ever(library: Any) -> None:
    """What comes after it is no loss outside: an evaluation, say, of many thousand blocks."""
    memory = StepMemory(allocator := StepAllocator(library))
    with memory.half("forward", is_forward=True):
        pass
    for _ in range(70_000):
        torch.empty(MiB, dtype=torch.uint8)
    assert len(allocator.log()) == 64 * 1024


def test_the_step_after_a_batch_that_was_skipped_runs_where_it_was_planned() -> None:
    """The half that never came is not learned as an iteration of its own, in place of the whole one."""
    virtual = vdnn.virtualize(network())
    for step in range(NUM_STEPS):
        list(gradients_first(virtual, step))
    for step in range(2):
        virtual(batch(step)).square().mean()  # its loss was no number, say
        list(gradients_first(virtual, step))
    virtual(batch(0))  # the next iteration begins: the one before is counted
    counts = session_of(virtual).memory.counts()
    assert counts is not None
    assert (counts.num_unexpected, counts.num_page_faults) <= (0, 20)


def test_an_evaluation_between_steps_has_the_room_of_the_idle_arena() -> None:
    virtual = vdnn.virtualize(network(), budget="80%")
    large = batch(0, 32 * 1024)
    for _ in range(3):
        clear(virtual)
        virtual(large).sum().backward()
    clear(virtual)
    before_nbytes, arena_nbytes = status_nbytes("VmRSS"), session_of(virtual).memory.arena_nbytes
    with torch.no_grad():
        virtual(batch(0))
    assert arena_nbytes > 64 * MiB
    assert before_nbytes - status_nbytes("VmRSS") > arena_nbytes // 2


def test_gradients_that_stay_over_the_next_forward_lie_outside_of_the_arena() -> None:
    """Their pages would be missing from the arena while the forward runs."""
    first, after = (vdnn.virtualize(network()) for _ in range(2))
    for step in range(NUM_STEPS):
        list(gradients_first(first, step))
        list(gradients_after_forward(after, step))
    arena_nbytes = [session_of(model).memory.counts().arena_nbytes for model in (first, after)]
    assert arena_nbytes[1] < arena_nbytes[0]
    assert session_of(after).memory.counts().num_unexpected == 0


def test_a_layout_that_is_wrong_does_no_harm(library: Any) -> None:
    """Slots that all lie at the same place: the first block gets it, the others get memory of their own."""
    allocator, nbytes = StepAllocator(library), MiB
    assert allocator.reserve(4 * MiB)
    same = Slots(np.array([[nbytes, 0, 0, 0, 1]] * 3), np.array([[0, nbytes]]))
    allocator.begin_half(same)
    blocks = [torch.full((nbytes,), k, dtype=torch.uint8) for k in range(3)]
    allocator.end_half([])
    assert [int(block.min()) for block in blocks] == [int(block.max()) for block in blocks] == [0, 1, 2]
    counts = allocator.counts()
    assert (counts.num_planned, counts.num_unexpected, counts.num_stashed) == (1, 2, 3)
    del blocks
    assert allocator.counts().num_stashed == 0


def test_idle_pages_are_given_back_and_what_lies_in_the_arena_is_not(library: Any) -> None:
    allocator = StepAllocator(library)
    assert allocator.reserve(8 * MiB)
    place = Slots(np.array([[MiB, 0, 0, 0, 1]]), np.array([[0, MiB]]))
    allocator.begin_half(place)
    block = torch.ones(MiB, dtype=torch.uint8)
    allocator.end_half([block.data_ptr()])  # the caller holds what was expected to go: it lies in the arena
    allocator.purge()
    assert int(block.min()) == 1
    del block
    before_nbytes = status_nbytes("VmRSS")
    allocator.purge()
    assert status_nbytes("VmRSS") <= before_nbytes - 6 * MiB
    allocator.begin_half(place)
    again = torch.ones(MiB, dtype=torch.uint8)
    allocator.end_half([])
    assert int(again.sum()) == MiB


def test_another_iteration_does_not_come_on_top_of_an_idle_arena(library: Any) -> None:
    """A better plan that takes over, or another shape, is recorded apart from the arena of the iterations before it."""
    memory, nbytes = StepMemory(StepAllocator(library)), 64 * MiB
    before_nbytes = status_nbytes("VmRSS")
    resident_nbytes = []
    for key in ("one", "one", "one", "other"):
        with memory.half(key, is_forward=True):
            block = torch.ones(nbytes, dtype=torch.uint8)
            resident_nbytes.append(status_nbytes("VmRSS") - before_nbytes)
            del block
    assert memory.counts().num_planned == 1, "the iteration before was learned"
    assert max(resident_nbytes) < 1.5 * nbytes


@pytest.mark.parametrize("forget", [lambda memory: memory.forget("old"), StepMemory.forget_all], ids=["one", "all"])
@pytest.mark.parametrize("num_old", [1, 2, 3])
def test_an_arena_does_not_hold_iterations_that_come_no_more(
    num_old: int, forget: Callable[[StepMemory], None], library: Any
) -> None:
    """Whether they were learned or only recorded when they were forgotten."""
    memory = StepMemory(StepAllocator(library))
    for number, (key, nbytes) in enumerate([("old", 8 * MiB)] * num_old + [("new", MiB)] * 3):
        if number == num_old:
            forget(memory)
        with memory.half(key, is_forward=True):
            torch.ones(nbytes, dtype=torch.uint8)
    counts = memory.counts()
    assert counts.arena_nbytes < 2 * MiB
    assert counts.num_planned == 1


def test_work_that_is_repeated_gets_its_pages_again_and_gives_them_back_at_the_end() -> None:
    with returned_memory():
        first = torch.ones(MiB).data_ptr()
        assert torch.ones(MiB).data_ptr() == first
        torch.ones(2 * MiB)
        before_nbytes = status_nbytes("VmRSS")
        large = torch.ones(16 * MiB)
        del large
    assert status_nbytes("VmRSS") < before_nbytes + 4 * MiB


def test_a_block_outlives_the_model_it_was_made_for(library: Any) -> None:
    allocator = StepAllocator(library)
    assert allocator.reserve(4 * MiB)
    allocator.begin_half(NO_SLOTS)
    block = torch.ones(MiB)
    allocator.end_half([])
    del allocator
    assert float(block.sum()) == MiB


def test_a_forked_child_trains_on() -> None:
    virtual = vdnn.virtualize(network())
    for step in range(3):
        list(gradients_first(virtual, step))

    def trains_on() -> int:
        torch.set_num_threads(1)
        return len(list(gradients_first(virtual, 3)))

    assert exit_code_of(trains_on) == len(list(virtual.parameters()))


def trains_without_addresses() -> tuple[str, bool]:
    """With so little room for addresses that no arena can be reserved."""
    virtual, plain = vdnn.virtualize(network(), sample=(batch(0),)), network()
    assert isinstance(session_of(virtual).memory, StepMemory)
    list(gradients_first(virtual, 0))
    now_nbytes = int(Path("/proc/self/status").read_text().split("VmSize:")[1].split()[0]) * 1024
    resource.setrlimit(resource.RLIMIT_AS, (now_nbytes + 3 * MiB, resource.RLIM_INFINITY))
    torch.manual_seed(1)
    found = list(gradients_first(virtual, 1))
    torch.manual_seed(1)
    expected = list(gradients_first(plain, 1))
    return session_of(virtual).memory.missing, all(map(torch.equal, found, expected))


@pytest.mark.slow
def test_an_arena_that_the_system_refuses_is_done_without() -> None:
    missing, is_equal = in_child(trains_without_addresses)
    assert "refuses an arena" in missing
    assert is_equal


def waits_for_a_slow_compiler(folder: str) -> tuple[bool, bool]:
    """Whether the library is being built when a model has been virtualized, and whether its steps have an arena."""
    compiler, log = Path(folder) / "slow-compiler", Path(folder) / "begun"
    compiler.write_text(f'#!/bin/sh\ntouch {log}\nsleep 4\nexec g++ "$@"\n')
    compiler.chmod(0o700)
    os.environ |= {"CXX": str(compiler), "VDNN_CACHE_DIR": folder}
    with torch.device("meta"):
        vdnn.plan(network(), (batch(0),))  # the machine is measured before
    virtual = vdnn.virtualize(network())
    where = begin_step_library()
    is_beside = not where.done()
    where.result()
    list(gradients_first(virtual, 0))
    return is_beside and log.exists(), isinstance(session_of(virtual).memory, StepMemory)


@pytest.mark.slow
def test_the_library_is_built_beside_what_comes_before_the_first_step(tmp_path: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("there is no g++")
    assert in_child(waits_for_a_slow_compiler, str(tmp_path)) == (True, True)


def reports_without_a_compiler() -> list[ProcessPart | None]:
    """Of a model without a budget, and of one with."""
    os.environ["CXX"] = "no-such-compiler"
    reports = []
    for budget in (None, "95%"):
        virtual = vdnn.virtualize(network(), budget=budget)
        list(gradients_first(virtual, 0))
        assert isinstance(session_of(virtual).memory, UnplannedMemory)
        reports.append(vdnn.report(virtual).process)
    return reports


@pytest.mark.slow
def test_without_a_compiler_training_goes_on_and_malloc_returns_what_is_freed_where_a_budget_is_kept() -> None:
    for process, returns_freed in zip(in_child(reports_without_a_compiler), (False, True), strict=True):
        assert process is not None
        assert "no-such-compiler" in process.missing
        assert (process.arena, process.returns_freed) == (None, returns_freed)
