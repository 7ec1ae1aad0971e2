"""Whatever a training loop does with forward and backward of a virtualized model comes out as without vdnn."""

from __future__ import annotations

import copy
import pickle
import threading
from typing import Any

import pytest
import torch
from equivalence import (
    assert_same_state,
    both,
    check,
    executors,
    pair,
    virtualize,
    without_garbage_collection,
)
from nets import (
    EITHER_FRONT_END,
    PYTORCH_MAY_WARN,
    ConvNet,
    LooksAtValues,
    Using,
    backward,
    images,
    options,
    rows,
)
from torch import Tensor, nn

from vdnn.runtime.runtime import shared_runtime
from where import here

pytestmark = pytest.mark.any_device


def test_a_virtualized_module_is_of_its_class_and_shares_its_parameters() -> None:
    model = ConvNet()
    virtual = virtualize(model)
    assert type(virtual) is ConvNet
    assert virtual is not model
    assert all(a is b for a, b in zip(virtual.parameters(), model.parameters(), strict=True))
    assert virtual.state_dict().keys() == model.state_dict().keys()


def test_the_original_module_stays_plain() -> None:
    model = ConvNet()
    virtual = virtualize(model)
    backward(model, images())
    assert executors(virtual) == []


@EITHER_FRONT_END
def test_gradients_accumulate_over_several_backwards(front_end: str) -> None:
    def accumulate(model: Any) -> None:
        for _ in range(3):
            backward(model, images())
        for parameter in model.parameters():
            parameter.grad.zero_()
        backward(model, images())

    check(ConvNet(), accumulate, **options(front_end, images()))


@EITHER_FRONT_END
def test_several_forwards_before_their_backwards_in_any_order(front_end: str) -> None:
    def out_of_order(model: Any) -> None:
        first, second, third = model(images(4)), model(images(6)), model(images(4))
        for output in (second, first, third):
            output.sum().backward()

    check(ConvNet(), out_of_order, **options(front_end, images()))


@EITHER_FRONT_END
@pytest.mark.parametrize("plain_backward_first", [False, True])
def test_a_retained_graph_runs_its_backward_again(front_end: str, plain_backward_first: bool) -> None:
    def thrice(model: Any) -> None:
        if plain_backward_first:
            backward(model, images())
        loss = model(images()).sum()
        loss.backward(retain_graph=True)
        loss.backward(retain_graph=True)
        loss.backward()

    check(ConvNet(), thrice, **options(front_end, images()))


@EITHER_FRONT_END
def test_a_second_backward_without_retain_graph_is_refused_as_in_pytorch(front_end: str) -> None:
    virtual = virtualize(ConvNet(), **options(front_end, images()))
    loss = virtual(images()).sum()
    loss.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


@EITHER_FRONT_END
def test_200_dropped_graphs_leave_nothing_behind(front_end: str) -> None:
    virtual = virtualize(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), **options(front_end, rows()))
    backward(virtual, rows())
    before = shared_runtime().handles.num_alive
    with without_garbage_collection():
        for _ in range(200):
            virtual(rows())
        assert shared_runtime().handles.num_alive == before


def test_a_graph_that_is_dropped_while_it_is_watched_leaves_nothing_behind() -> None:
    virtual = virtualize(ConvNet())
    virtual(images())
    before = shared_runtime().handles.num_alive
    with without_garbage_collection():
        for _ in range(5):
            virtual(images())
        assert shared_runtime().handles.num_alive == before


@EITHER_FRONT_END
def test_an_exception_in_forward_leaves_the_model_usable(front_end: str) -> None:
    def fail_then_train(model: Any) -> None:
        with pytest.raises(RuntimeError):
            model(torch.zeros(2, 5, 8, 8))
        backward(model, images())

    check(ConvNet(), fail_then_train, **options(front_end, images()))


@EITHER_FRONT_END
def test_an_exception_between_forward_and_backward_leaves_the_model_usable(front_end: str) -> None:
    def fail_then_train(model: Any) -> None:
        with pytest.raises(KeyError):
            _forward_and_fail(model)
        backward(model, images())

    check(ConvNet(), fail_then_train, **options(front_end, images()))


def _forward_and_fail(model: Any) -> None:
    output = model(images())
    raise KeyError(output.shape)


@EITHER_FRONT_END
def test_an_exception_in_a_gradient_hook_leaves_the_model_usable(front_end: str) -> None:
    def fail_then_train(model: Any) -> None:
        hook = model.conv.weight.register_hook(lambda gradient: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            backward(model, images())
        hook.remove()
        model.zero_grad()
        backward(model, images())

    check(ConvNet(), fail_then_train, **options(front_end, images()))


@EITHER_FRONT_END
def test_no_grad_runs_the_plain_model(front_end: str) -> None:
    virtual = virtualize(ConvNet(), **options(front_end, images()))
    known = len(executors(virtual))
    with torch.no_grad():
        assert not virtual(images(7)).requires_grad
    assert len(executors(virtual)) == known


@EITHER_FRONT_END
@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_evaluation_between_training_steps_changes_nothing(front_end: str, context: Any) -> None:
    def train_and_evaluate(model: Any) -> Tensor:
        backward(model, images())
        model.eval()
        with context():
            output = model(images(6)).clone()
        model.train()
        backward(model, images())
        return output

    expected, found = check(ConvNet(), train_and_evaluate, **options(front_end, images()))
    assert torch.equal(expected, found)


@EITHER_FRONT_END
def test_train_and_eval_are_followed_with_gradients_on(front_end: str) -> None:
    def alternate(model: Any) -> None:
        for mode in (True, False, True):
            backward(model.train(mode), images())

    check(ConvNet(), alternate, **options(front_end, images()))


@EITHER_FRONT_END
def test_backward_may_run_in_another_thread(front_end: str) -> None:
    def elsewhere(model: Any) -> None:
        for _ in range(2):
            thread = threading.Thread(target=model(images()).sum().backward)
            thread.start()
            thread.join()

    check(ConvNet(), elsewhere, **options(front_end, images()))


@EITHER_FRONT_END
def test_autocast_to_bfloat16_is_followed(front_end: str) -> None:
    # Small on purpose: what is compared is the path of the dtypes, not the speed of bfloat16.
    def mixed(model: Any) -> Tensor:
        with torch.autocast(here().type, dtype=torch.bfloat16):
            output = model(rows())
        output.float().sum().backward()
        backward(model, rows())
        return output

    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    expected, found = check(model, mixed, **options(front_end, rows()))
    assert found.dtype is expected.dtype is torch.bfloat16
    assert torch.equal(expected, found)


class PartlyWide(nn.Module):
    """A part of it leaves autocast; its backward runs outside, as all of backward does."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow, self.wide, self.kind = nn.Linear(4, 4), nn.Linear(4, 4), here().type

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.narrow(x)
        with torch.autocast(self.kind, enabled=False):
            return torch.tanh(self.wide(hidden.float()))


@EITHER_FRONT_END
def test_backward_runs_outside_autocast(front_end: str) -> None:
    def mixed(model: Any) -> Tensor:
        with torch.autocast(here().type, dtype=torch.bfloat16):
            output = model(rows())
        output.sum().backward()
        backward(model, rows())
        return output

    check(PartlyWide(), mixed, **options(front_end, rows()))


@EITHER_FRONT_END
@pytest.mark.parametrize(
    "hooks",
    [
        lambda: torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor.clone(), lambda tensor: tensor),
        torch.autograd.graph.save_on_cpu,
    ],
    ids=["clone", "save_on_cpu"],
)
def test_saved_tensor_hooks_that_store_copies_give_the_same_gradients(front_end: str, hooks: Any) -> None:
    """The handle dies with the tensor that the hook copied. Note [Cloned handles] in vdnn/runtime/handles.py"""

    def copied(model: Any) -> None:
        for _ in range(2):
            with hooks():
                loss = model(images()).sum()
            loss.backward()

    check(ConvNet(), copied, **options(front_end, images()))


def calls_batch_norm_twice(momentum: float | None) -> nn.Module:
    def twice(self: Any, batch: Tensor) -> Tensor:
        return self.norm(self.norm(self.conv(batch))).relu()

    return Using(twice, conv=nn.Conv2d(3, 4, 1), norm=nn.BatchNorm2d(4, momentum=momentum))


def two_steps(model: Any) -> None:
    backward(model, images())
    backward(model, images())


@EITHER_FRONT_END
def test_batch_norm_that_is_called_twice_updates_its_statistics_twice(front_end: str) -> None:
    check(calls_batch_norm_twice(momentum=0.1), two_steps, **options(front_end, images()))


@PYTORCH_MAY_WARN
def test_batch_norm_with_a_cumulative_average_keeps_it() -> None:
    # momentum=None divides by a counter that Python reads from a tensor, so capture breaks in the middle of the layer.
    check(calls_batch_norm_twice(momentum=None), two_steps)


@PYTORCH_MAY_WARN
def test_a_model_that_looks_at_values_runs_in_pieces() -> None:
    plain, virtual = pair(LooksAtValues())
    both(plain, virtual, lambda model: backward(model, images()))
    assert_same_state(plain, virtual)
    assert len(executors(virtual)) == 2


@EITHER_FRONT_END
def test_a_copy_or_a_pickle_of_a_virtualized_module_is_a_plain_module(front_end: str) -> None:
    virtual = virtualize(ConvNet(), **options(front_end, images()))
    backward(virtual, images())
    backward(copy.deepcopy(virtual), images())
    backward(pickle.loads(pickle.dumps(virtual)), images())
    (executor,) = executors(virtual)
    assert executor.measured.num_forward == 1
