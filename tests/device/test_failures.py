"""When a device fails, training says so once, with the numbers; nothing hangs, and the next step works if one can."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

import vdnn
from cpu.equivalence import Outcome, assert_same, train
from device.chains import MAP_NBYTES, Chain, chain
from vdnn.api import session_of
from vdnn.errors import DeviceLost, TierFailed
from vdnn.runtime.device_failures import told_with_numbers
from vdnn.runtime.journeys import Journeys
from vdnn.runtime.runtime import shared_runtime

accelerator = torch.accelerator
OFFLOAD: dict[str, Any] = {"strategy": "offload", "hardware": "titan-x", "costs": "roofline"}
ANSWERS_NO_MORE = r"(?s)lost vdev:0, which answers no more: .*was reset.*Start the process again"


@pytest.fixture(autouse=True)
def own_tiers(vdev: ModuleType) -> Iterator[ModuleType]:
    yield vdev
    vdev.reset()
    gc.collect()
    shared_runtime().close()


def expected(steps: int = 3) -> Outcome:
    model, args = chain()
    return train(model, model, args, steps)


def assert_trains_as_ever(virtual: Any, model: Chain, args: tuple[Tensor, ...]) -> None:
    gc.collect()  # an error that is told holds the step that it ended
    model.zero_grad()
    model.load_state_dict(chain()[0].state_dict())
    assert_same(expected(), train(virtual, model, args))


@pytest.mark.parametrize("copies", ["fast copies", "slow copies"])
def test_memory_that_another_process_took_is_told_and_the_next_step_works(copies: str, vdev: ModuleType) -> None:
    model, args = chain()
    virtual = vdnn.virtualize(model, budget="75%", **OFFLOAD)
    virtual(*args).backward()
    model.zero_grad()
    session_of(virtual).memory.make_room()  # the arena goes: nobody can take what is reserved
    accelerator.empty_cache()
    vdev.set_copy_rate(20 * MAP_NBYTES if copies == "slow copies" else 0)
    vdev.set_limit(accelerator.memory_reserved() + 8 * MAP_NBYTES)
    vdev.set_others(7 * MAP_NBYTES)
    for _ in range(2):
        with pytest.raises(
            torch.OutOfMemoryError, match=r"(?s)ran out of memory on vdev:0: .*Its plan takes .* 7\.00 MiB with others"
        ):
            virtual(*args).backward()
        gc.collect()
    vdev.set_others(0)
    vdev.set_limit(None)
    assert_trains_as_ever(virtual, model, args)


@pytest.mark.parametrize("tier", ["host", "disk"])
@pytest.mark.parametrize("lost", ["before forward", "in forward", "in backward"])
def test_a_device_that_was_reset_is_told_at_once_and_again(
    lost: str, tier: str, vdev: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its copies are slow, so that some are under way."""
    model, args = chain()
    bounds = {} if tier == "host" else {"host_budget": "1B", "spill_dir": str(tmp_path)}
    virtual = vdnn.virtualize(model, budget="75%", **OFFLOAD, **bounds)
    virtual(*args).backward()
    model.zero_grad()
    vdev.set_copy_rate(50 * MAP_NBYTES)
    move = {"in forward": "send", "in backward": "fetch"}.get(lost)
    if move is not None:
        monkeypatch.setattr(Journeys, move, in_the_second(getattr(Journeys, move), lambda: vdev.set_lost(True)))
    else:
        vdev.set_lost(True)
    with pytest.raises(DeviceLost, match=ANSWERS_NO_MORE):
        virtual(*args).backward()
    monkeypatch.undo()
    with pytest.raises(DeviceLost, match=ANSWERS_NO_MORE):
        virtual(*args)
    gc.collect()
    shared_runtime().close()
    vdev.set_lost(False)
    vdev.set_copy_rate(0)
    assert_trains_as_ever(virtual, model, args)


def in_the_second(method: Callable[..., Any], then: Callable[[], None]) -> Callable[..., Any]:
    calls = itertools.count()

    def called(*args: Any) -> Any:
        if next(calls) == 1:
            then()
        return method(*args)

    return called


@pytest.mark.parametrize("tier", ["host", "disk"])
def test_between_forward_and_backward_torch_says_itself_that_the_device_is_gone(
    tier: str, vdev: ModuleType, tmp_path: Path
) -> None:
    model, args = chain()
    bounds = {} if tier == "host" else {"host_budget": "1B", "spill_dir": str(tmp_path)}
    virtual = vdnn.virtualize(model, budget="75%", **OFFLOAD, **bounds)
    loss = virtual(*args)
    vdev.set_lost(True)
    with pytest.raises(torch.AcceleratorError, match="was reset"):  # it makes the gradient of the loss
        loss.backward()
    del loss
    gc.collect()
    vdev.set_lost(False)
    assert_trains_as_ever(virtual, model, args)


class Refused(Exception):
    pass


@pytest.mark.parametrize("tier", ["host", "disk"])
def test_an_exception_between_forward_and_backward_leaves_nothing_behind(
    tier: str, vdev: ModuleType, tmp_path: Path
) -> None:
    """Copies are slow and freed memory is full of NaN: what is under way must neither be read nor overwritten."""
    model, args = chain()
    bounds = {} if tier == "host" else {"host_budget": "1B", "spill_dir": str(tmp_path)}
    virtual = vdnn.virtualize(model, budget="75%", replan=False, **OFFLOAD, **bounds)
    virtual(*args).backward()
    model.zero_grad()
    vdev.set_poison(True)
    vdev.set_copy_rate(50 * MAP_NBYTES)
    for _ in range(3):
        with pytest.raises(Refused):
            refuses(virtual(*args))
    vdev.set_copy_rate(0)
    assert_trains_as_ever(virtual, model, args)
    gc.collect()
    accelerator.synchronize()
    (transfers,) = shared_runtime()._transfers.values()
    assert [store.used_nbytes for store in transfers.stores.values()] == [0] * len(transfers.stores)


def refuses(loss: Tensor) -> None:
    raise Refused


@pytest.mark.parametrize("error", [TierFailed("no event"), torch.AcceleratorError("a kernel")])
def test_an_error_of_a_device_that_answers_is_its_own(error: Exception, vdev: ModuleType) -> None:
    """What fails in a thread that carries bytes to disk is heard as the tier's failure."""
    plan, where = vdnn.plan(*chain("cpu"), hardware="titan-x"), torch.device("vdev:0")
    with pytest.raises(type(error)) as found, told_with_numbers("forward", plan, where):
        raise error
    assert found.value is error
    vdev.set_lost(True)
    with pytest.raises(DeviceLost, match="lost vdev:0"), told_with_numbers("forward", plan, where):
        raise error
