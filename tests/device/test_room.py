"""Without a budget a model on an accelerator keeps everything where there is room, and else fits into what is free."""

from __future__ import annotations

import gc
from types import ModuleType

import pytest
import torch

import vdnn
from cpu.equivalence import assert_same, executors, train
from device.chains import MAP_NBYTES, chain
from vdnn.api import session_of
from vdnn.compile import device_room
from vdnn.errors import Infeasible
from vdnn.report.process_part import RoomPart

accelerator = torch.accelerator


@pytest.fixture(autouse=True)
def counted(vdev: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Reserved bytes are those of blocks, and nothing is left of the test before. Of a dozen maps that the device has,
    one that lies between two blocks is a large share."""
    monkeypatch.setattr(device_room, "RESERVE_SHARE", 1 / 4)
    gc.collect()
    accelerator.empty_cache()
    vdev.set_segments(0, 0)
    vdev.set_blocking(True)
    return vdev


def room_of(virtual: object) -> RoomPart:
    process = vdnn.report(virtual).process
    assert process is not None
    assert process.device is not None
    assert process.device.room is not None
    return process.device.room


def test_where_there_is_room_everything_is_kept_and_the_report_says_how_much_there_is() -> None:
    model, args = chain()
    virtual = vdnn.virtualize(model, hardware="titan-x")
    virtual(*args).backward()
    assert (executors(virtual)[0].plan.strategy, executors(virtual)[0].plan.problem.budget_nbytes) == ("keep-all", None)
    room = room_of(virtual)
    assert not room.is_needed
    assert f"No budget was named: everything is kept, well within {room.nbytes / 2**30:.2f} GiB" in " ".join(
        str(vdnn.report(virtual)).split()
    )


@pytest.mark.parametrize("sample", [False, True])
def test_a_model_that_would_not_fit_trains_in_what_is_free_less_a_reserve(sample: bool, vdev: ModuleType) -> None:
    plain, rows = chain("cpu")
    expected = train(plain, plain, rows)
    model, args = chain()
    vdev.set_limit(accelerator.memory_reserved() + 16 * MAP_NBYTES)
    vdev.set_others(MAP_NBYTES)
    free, _ = accelerator.get_memory_info()
    own_nbytes = sum(tensor.nbytes for tensor in (*model.parameters(), *args))
    virtual = vdnn.virtualize(model, optimizer="momentum", replan=False, **({"sample": args} if sample else {}))
    virtual(*args).backward()
    model.zero_grad()
    (executor,) = executors(virtual)
    room = room_of(virtual)
    assert room.is_needed
    assert abs(room.usable_nbytes - free - own_nbytes) <= MAP_NBYTES // 4  # biases are rounded up
    assert room.nbytes == room.usable_nbytes - int(device_room.RESERVE_SHARE * room.usable_nbytes)
    assert executor.plan.problem.budget_nbytes == room.nbytes
    assert executor.plan.strategy == "auto"
    assert f"steps are held to {room.nbytes / MAP_NBYTES:.2f} MiB" in " ".join(str(vdnn.report(virtual)).split())
    model.load_state_dict(chain()[0].state_dict())
    found = train(virtual, model, args)
    found.tensors = {name: tensor if tensor is None else tensor.cpu() for name, tensor in found.tensors.items()}
    found.losses = [loss.cpu() for loss in found.losses]
    assert_same(expected, found)


def test_a_model_for_which_there_is_not_enough_says_that_the_bytes_are_what_was_free(vdev: ModuleType) -> None:
    model, args = chain()
    vdev.set_limit(accelerator.memory_reserved() + 2 * MAP_NBYTES)
    with pytest.raises(
        Infeasible, match=r"(?s)no 'auto' plan fits .*No budget was named: steps are held to .* vdev:0 had free"
    ):
        vdnn.virtualize(model, sample=args, hardware="titan-x", costs="roofline")


def test_a_budget_that_was_named_is_the_budget_whatever_is_free(vdev: ModuleType) -> None:
    model, args = chain()
    vdev.set_limit(accelerator.memory_reserved() + 24 * MAP_NBYTES)
    virtual = vdnn.virtualize(model, budget="64MiB", hardware="titan-x", costs="roofline")
    virtual(*args).backward()
    assert executors(virtual)[0].plan.problem.budget_nbytes == 64 * MAP_NBYTES


def test_a_strategy_that_was_named_is_kept_within_what_is_free(vdev: ModuleType) -> None:
    model, args = chain()
    vdev.set_limit(accelerator.memory_reserved() + 12 * MAP_NBYTES)
    virtual = vdnn.virtualize(model, strategy="offload", hardware="titan-x", costs="roofline")
    virtual(*args).backward()
    plan = executors(virtual)[0].plan
    assert plan.strategy == "offload"
    assert plan.problem.budget_nbytes == room_of(virtual).nbytes


def test_what_the_allocator_keeps_and_nobody_uses_is_free_for_a_model() -> None:
    model, args = chain()
    own_nbytes = sum(tensor.nbytes for tensor in (*model.parameters(), *args))
    free, _ = accelerator.get_memory_info()
    torch.empty(8 * MAP_NBYTES, dtype=torch.uint8, device="vdev")  # and given back to the allocator
    virtual = vdnn.virtualize(model, hardware="titan-x")
    virtual(*args).backward()
    assert room_of(virtual).usable_nbytes >= free + own_nbytes


@pytest.mark.parametrize("sample", [False, True])
def test_a_step_that_runs_out_of_memory_all_the_same_leaves_more_to_the_next(
    sample: bool, vdev: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the reserve is for takes more than the reserve: another process takes some when all is planned."""
    monkeypatch.setattr(device_room, "RESERVE_SHARE", 1 / 8)
    model, args = chain()
    vdev.set_limit(accelerator.memory_reserved() + 12 * MAP_NBYTES)
    virtual = vdnn.virtualize(model, **({"sample": args} if sample else {}), hardware="titan-x", costs="roofline")
    virtual(*args).backward()
    model.zero_grad()
    before = room_of(virtual)
    session_of(virtual).memory.make_room()  # the arena goes: it was reserved before
    accelerator.empty_cache()
    vdev.set_others(4 * MAP_NBYTES)
    with pytest.raises(torch.OutOfMemoryError, match="ran out of memory on vdev:0"):
        virtual(*args).backward()
    gc.collect()
    model.zero_grad()
    virtual(*args).backward()
    after = room_of(virtual)
    assert after.reserve_nbytes == 2 * before.reserve_nbytes
    assert after.nbytes == before.nbytes - before.reserve_nbytes == executors(virtual)[0].plan.problem.budget_nbytes
