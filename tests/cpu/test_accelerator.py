"""What only an accelerator shows: its allocator's bytes, its limit, its clock, a second one beside it.

That training on it leaves the bits of eager is asked by the files that are marked `any_device`.
"""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from blocks import as_allocated, block_nbytes
from equivalence import assert_same, executors, train
from nets import ConvNet
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import vdnn
from vdnn.api import session_of
from vdnn.errors import Infeasible, InvalidInput
from vdnn.models import MODELS
from vdnn.runtime.watched_step import WatchedStep

accelerator = torch.accelerator


@pytest.fixture(autouse=True)
def exact_blocks(vdev: ModuleType) -> ModuleType:
    """The allocator reserves what it is asked for, and every op has ended when its call returns."""
    vdev.set_segments(0, 0)
    vdev.set_blocking(True)
    return vdev


def others_nbytes(model: nn.Module, args: tuple[Tensor, ...]) -> int:
    """What lies on the device beside a model and its batch: tables of other files, where the whole suite is run."""
    gc.collect()
    own = (*model.parameters(), *model.buffers(), *args)
    return accelerator.memory_allocated() - sum(map(block_nbytes, own))


def on(where: str, name: str, batch: int = 8) -> tuple[nn.Module, Callable[..., Any], tuple[Tensor, ...]]:
    torch.manual_seed(0)
    spec = MODELS[name].small()
    model = spec.build().to(where)
    return model, spec.step(model), tuple(given.to(where) for given in spec.sample(batch))


class Allocated:
    """The most that the allocator had in each instruction of a watched step."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.nbytes: dict[int, int] = {}
        self._position = -1
        for method in ("mark", "end_half"):
            patch.setattr(WatchedStep, method, self._noting(getattr(WatchedStep, method)))

    def _noting(self, method: Callable[..., None]) -> Callable[..., None]:
        def note(step: WatchedStep, position: int = -1) -> None:
            self.nbytes[self._position] = accelerator.max_memory_allocated()
            self._position = position
            accelerator.reset_peak_memory_stats()
            method(step, *([position] if position >= 0 else []))

        return note


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("resnet50", {"budget": "75%"}),
        ("resnet50", {"budget": "80%", "strategy": "offload"}),
        ("gpt2", {"budget": "80%"}),
    ],
)
def test_the_allocator_has_the_planned_bytes_at_every_instruction(
    name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, step, args = on("vdev", name)
    others = others_nbytes(model, args)
    virtual = vdnn.virtualize(step, sample=args, replan=False, **options)
    allocated = Allocated(monkeypatch)
    virtual(*args).backward()
    (executor,) = executors(virtual)
    expected = as_allocated(executor.plan)
    surplus = {at: allocated.nbytes[at] - others - expected[at] for at in range(len(expected))}
    assert {position: nbytes for position, nbytes in surplus.items() if nbytes} == {}
    assert max(allocated.nbytes.values()) - others <= (executor.plan.problem.budget_nbytes or 0)


def test_a_model_trains_in_bytes_in_which_eager_does_not() -> None:
    def losses(step: Callable[..., Any], model: nn.Module) -> list[float]:
        found, optimizer = [], torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(3):
            optimizer.zero_grad()
            loss = step(*args)
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    model, step, args = on("vdev", "resnet50")
    expected = losses(step, model)
    del model, step
    model, step, args = on("vdev", "resnet50")
    others = others_nbytes(model, args)
    virtual = vdnn.virtualize(step, sample=args, budget="75%", replan=False)
    (executor,) = executors(virtual)
    budget = executor.plan.problem.budget_nbytes or 0
    accelerator.reset_peak_memory_stats()
    assert losses(virtual, model) == expected
    assert accelerator.max_memory_allocated() - others <= budget
    accelerator.reset_peak_memory_stats()
    losses(step, model)
    assert accelerator.max_memory_allocated() - others > budget


def test_two_models_train_on_two_devices() -> None:
    for front_end in ("sample", "none"):
        found = []
        for where in ("vdev:0", "vdev:1"):
            model, step, args = on(where, "alexnet", 2)
            sample = {"sample": args} if front_end == "sample" else {}
            found.append((model, vdnn.virtualize(step, budget="100%", **sample), args))
        outcomes = [train(virtual, model, args) for model, virtual, args in found]
        for outcome, (model, virtual, _) in zip(outcomes, found, strict=True):
            assert {p.device for p in model.parameters()} == {executors(virtual)[-1].edition.where}
            plain, step, args = on(str(next(model.parameters()).device), "alexnet", 2)
            assert_same(train(step, plain, args), outcome)


def test_a_model_on_two_accelerators_is_refused_by_the_names_of_its_tensors() -> None:
    model = nn.Sequential(nn.Linear(4, 4, device="vdev:0"), nn.Linear(4, 4, device="vdev:1"))
    with pytest.raises(InvalidInput, match=r"on vdev:0: '0.weight', '0.bias'; on vdev:1: '1.weight', '1.bias'"):
        vdnn.virtualize(model)


def test_a_budget_is_of_one_device_and_a_model_on_another_is_refused_by_name() -> None:
    budget = vdnn.Budget("1GiB")
    first = vdnn.virtualize(nn.Linear(4, 4, device="vdev:0"), budget=budget)
    for where in ("vdev:1", "cpu"):
        with pytest.raises(InvalidInput, match=rf"Conv1d is on {where}, and Linear, which has .* is on vdev:0"):
            vdnn.virtualize(nn.Conv1d(4, 4, 1, device=where), budget=budget)
    vdnn.virtualize(nn.Linear(4, 4, device="vdev"), budget=budget)
    assert [member.where for member in budget.members()] == ["vdev:0", "vdev:0"]
    del first


def test_a_batch_on_another_accelerator_is_refused_by_name() -> None:
    model = nn.Linear(4, 4, device="vdev:0")
    rows = torch.ones(2, 4, device="vdev:1")
    with pytest.raises(InvalidInput, match=r"on vdev:0: 'model.weight', 'model.bias'; on vdev:1: 'argument 0'"):
        vdnn.virtualize(lambda rows: model(rows.to("vdev:0")).sum(), sample=(rows,), budget="90%")


def test_scalars_indices_and_a_batch_on_the_cpu_take_no_bytes_of_the_device() -> None:
    def step(images: Tensor, scale: Tensor, rows: Tensor, labels: Tensor) -> Tensor:
        outputs = model(images.to("vdev") * scale)
        return cross_entropy(outputs[rows], labels.to("vdev"))

    torch.manual_seed(0)
    args = (torch.randn(4, 3, 8, 8), torch.tensor(0.5), torch.tensor([0, 2]), torch.tensor([1, 3]))
    original = ConvNet().to("vdev")
    model = copy.deepcopy(original)
    expected = train(step, model, args)
    model = copy.deepcopy(original)
    virtual = vdnn.virtualize(step, sample=args, strategy="keep-all")
    assert_same(expected, train(virtual, model, args))
    graph = executors(virtual)[0].plan.problem.graph
    given = [graph.storages[graph.values[value].storage] for value in graph.inputs]
    assert [storage.nbytes for storage in given if storage.role == "input"] == [0, 0, 0, 0]


def test_a_model_that_is_moved_after_it_was_virtualized_trains_where_it_is() -> None:
    model, _, _ = on("cpu", "alexnet", 2)
    virtual = vdnn.virtualize(model, budget="100%")
    virtual.to("vdev:1")
    _, _, (images, *_) = on("vdev:1", "alexnet", 2)
    virtual(images).sum().backward()
    assert executors(virtual)[-1].edition.where == torch.device("vdev:1")


def test_out_of_memory_in_mid_step_says_the_numbers_and_the_next_step_works(vdev: ModuleType) -> None:
    model, step, args = on("vdev", "resnet50")
    virtual = vdnn.virtualize(step, sample=args, budget="80%", strategy="offload", replan=False)
    virtual(*args).backward()
    session_of(virtual).memory.make_room()
    hog = torch.empty(1 << 20, device="vdev")
    accelerator.empty_cache()
    vdev.set_limit(accelerator.memory_allocated() + (1 << 20))  # what else is reserved can be given back
    with pytest.raises(
        torch.OutOfMemoryError,
        match=r"(?s)ran out of memory on vdev:0: .*Its plan takes .* within a"
        r" budget of .*The device has .* in tensors of this process, .* free",
    ):
        virtual(*args).backward()
    del hog
    vdev.set_limit(None)
    fresh, plain, args = on("vdev", "resnet50")
    model.load_state_dict(fresh.state_dict())
    assert_same(train(plain, fresh, args), train(virtual, model, args))


def test_nobody_waits_for_the_device_in_an_ordinary_step(vdev: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    _, step, args = on("vdev", "alexnet", 2)
    virtual = vdnn.virtualize(step, sample=args)
    virtual(*args).backward()
    vdev.set_blocking(False)
    waits: list[str] = []
    monkeypatch.setattr(accelerator, "synchronize", lambda *_: waits.append("device"))
    (executor,) = executors(virtual)
    vdev.sleep(0.2)
    virtual(*args).backward()
    assert waits == []
    executor.measured.settle()
    assert executor.measured.forward_s[-1] > 0


def test_a_step_that_no_budget_allows_says_how_much_the_allocator_rounds_up() -> None:
    _, step, args = on("vdev", "alexnet", 2)
    with pytest.raises(Infeasible, match="Raise budget to at least"):
        vdnn.virtualize(step, sample=args, budget="1%")
