"""Encodings through everything a training loop does: kept graphs, dropped graphs, threads, errors, slower tiers."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from blocks import beside_nbytes
from equivalence import (
    assert_measured_as_simulated,
    assert_same,
    assert_same_state,
    both,
    check,
    executors,
    pair,
    train,
    virtualize,
    with_loss_outside,
    without_garbage_collection,
)
from nets import EITHER_FRONT_END, PYTORCH_MAY_WARN, ConvNet, LooksAtValues, images, options
from tiers import DISK, MACHINES, used_nbytes
from torch import nn

import vdnn
from vdnn.environment import PLAN_CACHE
from vdnn.errors import LostHandle
from vdnn.plan import Decision, Encode, EncodeOffload, Plan, Problem, Recompute
from vdnn.plan.strategies import gist
from vdnn.plan.strategies.strategy import Strategy
from vdnn.plan.strategy_table import STRATEGIES
from vdnn.runtime.runtime import shared_runtime
from vdnn.units import Nbytes

pytestmark = pytest.mark.any_device

GIST: dict[str, Any] = {"strategy": "gist"}


def network() -> nn.Module:
    """Signs, windows, noise, zeros and a shape: every kind of encoding in one small network."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU6(),
        nn.Dropout(0.3),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32, 4),
    )


def backward(model: Any, batch: torch.Tensor) -> None:
    """One step that holds the output through backward, as a training loop does and the plan counts."""
    output = model(batch)
    output.sum().backward()


def test_the_small_network_has_every_kind_of_code() -> None:
    found = vdnn.plan(network(), (images(),), hardware="titan-x", strategy="gist")
    codecs = {d.action.codec for d in found.decisions if isinstance(d.action, Encode)}
    assert codecs == {"sign-mask", "bool-mask", "window-index", "sparse"}


@EITHER_FRONT_END
def test_several_steps_are_exact_and_in_the_bytes_that_were_simulated(front_end: str) -> None:
    plain, virtual = pair(network(), **GIST, **options(front_end, images()))
    for _ in range(3):
        both(plain, virtual, lambda model: backward(model, images()))
    assert_same_state(plain, virtual)
    assert_measured_as_simulated(virtual)


def test_several_forwards_before_their_backwards_keep_their_encodings_apart() -> None:
    def steps(model: Any) -> None:
        losses = [model(images() * scale).sum() for scale in (1, 2, -3)]
        for loss in (losses[1], losses[2], losses[0]):
            loss.backward()

    check(network(), steps, **GIST)


def test_a_kept_graph_decodes_again() -> None:
    def steps(model: Any) -> None:
        loss = model(images()).sum()
        loss.backward(retain_graph=True)
        loss.backward()

    check(network(), steps, **GIST)


@PYTORCH_MAY_WARN
def test_a_model_in_pieces_is_exact() -> None:
    plain, virtual = pair(LooksAtValues(), **GIST)
    both(plain, virtual, lambda model: backward(model, images()))
    assert len(executors(virtual)) == 2
    assert_same_state(plain, virtual)


def test_evaluation_between_steps_changes_nothing() -> None:
    def steps(model: Any) -> None:
        backward(model, images())
        with torch.no_grad():
            model.eval()(images())
        backward(model.train(), images())

    check(network(), steps, **GIST)


def test_dropped_graphs_leave_nothing_behind() -> None:
    _, virtual = pair(network(), **GIST, **options("ahead of time", images()))
    backward(virtual, images())
    with without_garbage_collection():
        before = shared_runtime().handles.num_alive
        for _ in range(20):
            virtual(images())
        assert shared_runtime().handles.num_alive == before


def test_an_exception_between_forward_and_backward_leaves_nothing_behind() -> None:
    plain, virtual = pair(network(), **GIST, **options("ahead of time", images()))

    def stumble(model: Any) -> None:
        try:
            model(images()).sum()
            raise KeyError("user code")
        except KeyError:
            pass

    with without_garbage_collection():
        before = shared_runtime().handles.num_alive
        both(plain, virtual, stumble)
        assert shared_runtime().handles.num_alive == before
    both(plain, virtual, lambda model: backward(model, images()))
    assert_same_state(plain, virtual)


def test_an_exception_in_backward_does_not_spoil_the_next_step() -> None:
    plain, virtual = pair(network(), **GIST, **options("ahead of time", images()))

    def refuse(gradient: torch.Tensor) -> torch.Tensor:
        raise KeyError("user code")

    def stumble(model: Any) -> None:
        output = model(images())
        output.register_hook(refuse)
        with pytest.raises(KeyError):
            output.sum().backward()

    both(plain, virtual, stumble)
    both(plain, virtual, lambda model: backward(model, images()))
    assert_same_state(plain, virtual)


def test_hooks_that_copy_saved_tensors_copy_codes_too() -> None:
    def step(model: Any) -> None:
        with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda tensor: tensor):
            loss = model(images()).sum()
        loss.backward()

    check(network(), step, **GIST, density=1.0, **options("ahead of time", images()))


def test_two_models_take_turns() -> None:
    pairs = [pair(network(), **GIST, **options("ahead of time", images())) for _ in range(2)]

    def steps(models: Any) -> None:
        one, other = (model(images()).sum() for model in models)
        one.backward()
        other.backward()

    plain, virtual = zip(*pairs, strict=True)
    both(plain, virtual, steps)  # type: ignore[arg-type]
    for one, other in pairs:
        assert_same_state(one, other)


def test_threads_train_models_of_their_own() -> None:
    """Without dropout, whose noise comes from one generator for all threads."""
    pairs = [pair(nn.Sequential(*list(network())[:5]), **GIST, sample=(images(),)) for _ in range(3)]
    for plain, _ in pairs:
        backward(plain, images())
    threads = [threading.Thread(target=backward, args=(virtual, images())) for _, virtual in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for plain, virtual in pairs:
        assert_same_state(plain, virtual)


def test_a_backward_may_run_in_another_thread_than_its_forward() -> None:
    def step(model: Any) -> None:
        loss = model(images()).sum()
        thread = threading.Thread(target=loss.backward)
        thread.start()
        thread.join()

    check(network(), step, **GIST)


@EITHER_FRONT_END
def test_a_module_with_its_loss_outside_trains_exactly(front_end: str) -> None:
    model = ConvNet()
    twin = virtualize(copy.deepcopy(model), **GIST, **options(front_end, images()))
    args = (images(), torch.tensor([0, 1, 2, 3]))
    steps = [with_loss_outside(m, nn.functional.cross_entropy) for m in (model, twin)]
    assert_same(train(steps[0], model, args), train(steps[1], twin, args))


Change = Callable[[Encode], EncodeOffload]


def travelling(tier: str, fetch: str, *, decoded: bool) -> Change:
    """An encoding's way to a tier and back: sent at once, fetched where it is used, or as early as can be."""

    def change(action: Encode) -> EncodeOffload:
        direct = action.direct and not decoded
        steps = (action.leave, action.leave, action.back if fetch == "late" else action.leave + 1, action.back)
        seconds = (action.encode_s, action.encode_s)
        return EncodeOffload(action.codec, action.nbytes, tier, *steps, *seconds, action.detail, direct)

    return change


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch) -> Callable[[Change], str]:
    """A strategy whose plans are gist's with every code changed; its name. Plans are not remembered: each change would
    find those of another."""
    monkeypatch.setenv(PLAN_CACHE, "off")

    def install(change: Change) -> str:
        def solve(problem: Problem) -> Plan:
            plan = gist.solve(replace(problem, budget_nbytes=None))
            return replace(plan, problem=problem, strategy="by hand", decisions=tuple(_changed(plan, change)))

        monkeypatch.setitem(STRATEGIES, "by hand", Strategy("by hand", solve))
        return "by hand"

    return install


def _changed(plan: Plan, change: Change) -> Iterator[Decision]:
    for decision in plan.decisions:
        assert not isinstance(decision.action, Recompute)
        yield replace(decision, action=change(decision.action)) if isinstance(decision.action, Encode) else decision


@pytest.mark.parametrize("decoded", [False, True])
@pytest.mark.parametrize("fetch", ["late", "early"])
@pytest.mark.parametrize("machine", MACHINES)
def test_encodings_that_travel_come_back_exactly_and_within_the_budget(
    by_hand: Any, machine: str, fetch: str, decoded: bool
) -> None:
    strategy = by_hand(travelling(MACHINES[machine].tiers[-1].name, fetch, decoded=decoded))
    planned = vdnn.plan(network(), (images(),), hardware=MACHINES[machine], strategy=strategy)
    smallest = planned.peak_nbytes + beside_nbytes(planned.problem.graph)
    plain, virtual = copy.deepcopy(network()), network()
    virtual = vdnn.virtualize(
        virtual, (images(),), hardware=MACHINES[machine], strategy=strategy, budget=Nbytes(smallest), costs="roofline"
    )
    for _ in range(2):
        both(plain, virtual, lambda model: backward(model, images()))
    assert_same_state(plain, virtual)
    assert_measured_as_simulated(virtual)
    (executor,) = executors(virtual)
    assert executor.measured.timeline is not None
    assert executor.measured.timeline.peak_nbytes <= smallest


def test_encodings_that_travel_leave_their_tier_with_their_graph(by_hand: Any) -> None:
    strategy = by_hand(travelling("disk", "late", decoded=False))
    virtual = vdnn.virtualize(network(), (images(),), hardware=DISK, strategy=strategy)
    loss = virtual(images()).sum()
    assert used_nbytes(virtual) > 0
    del loss
    assert used_nbytes(virtual) == 0


def test_a_kept_graph_fetches_encodings_again(by_hand: Any) -> None:
    def steps(model: Any) -> None:
        loss = model(images()).sum()
        loss.backward(retain_graph=True)
        loss.backward()

    check(network(), steps, strategy=by_hand(travelling("disk", "late", decoded=False)), hardware=DISK)


def test_encodings_that_travel_are_lost_with_their_handle(by_hand: Any) -> None:
    strategy = by_hand(travelling("disk", "late", decoded=False))
    virtual = vdnn.virtualize(network(), (images(),), hardware=DISK, strategy=strategy)
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda tensor: tensor):
        loss = virtual(images()).sum()
    with pytest.raises(LostHandle, match="outside such hooks"):
        loss.backward()


def test_an_encoding_that_travels_and_does_not_fit_takes_the_whole_map_along(by_hand: Any) -> None:
    strategy = by_hand(travelling("disk", "late", decoded=False))
    plain, virtual = pair(
        network(),
        hardware=DISK,
        strategy=strategy,
        density=0.02,
        budget="1GiB",
        costs="roofline",
    )
    both(plain, virtual, lambda model: backward(model, images()))
    assert_same_state(plain, virtual)
    (executor,) = executors(virtual)
    assert executor.encodings.found.num_too_dense > 0
    assert used_nbytes(virtual) == 0
