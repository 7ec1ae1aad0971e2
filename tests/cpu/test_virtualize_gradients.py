"""Gradients of a virtualized model: asked for in parts, hooked, handed in and handed on, as in plain PyTorch."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from equivalence import assert_same_state, both, check, virtualize
from nets import EITHER_FRONT_END, PYTORCH_MAY_WARN, ConvNet, backward, images, options, rows
from torch import Tensor, nn

pytestmark = pytest.mark.any_device


@EITHER_FRONT_END
def test_gradients_may_be_asked_for_one_by_one(front_end: str) -> None:
    def piecemeal(model: Any) -> list[Tensor]:
        batch = images().requires_grad_()
        output = model(batch)
        some = torch.autograd.grad(output.sum(), [batch, model.linear.weight], retain_graph=True)
        return [*some, *torch.autograd.grad(output[0].sum(), model.conv.weight)]

    expected, found = check(ConvNet(), piecemeal, **options(front_end, images().requires_grad_()))
    assert all(map(torch.equal, expected, found))


@EITHER_FRONT_END
def test_backward_may_be_limited_to_some_parameters(front_end: str) -> None:
    def limited(model: Any) -> None:
        model(images()).sum().backward(inputs=[model.linear.weight])

    check(ConvNet(), limited, **options(front_end, images()))


@EITHER_FRONT_END
@PYTORCH_MAY_WARN
def test_gradients_of_what_comes_before_and_after_the_model(front_end: str) -> None:
    def in_the_middle(model: Any) -> list[Tensor | None]:
        batch = images() * torch.ones((), requires_grad=True)
        batch.retain_grad()
        output = model(batch)
        output.retain_grad()
        output.square().sum().backward()
        return [batch.grad, output.grad]

    expected, found = check(ConvNet(), in_the_middle, **options(front_end, images()))
    assert all(map(torch.equal, expected, found))


@EITHER_FRONT_END
def test_a_gradient_that_the_caller_hands_in_is_left_intact(front_end: str) -> None:
    # ReLU's backward could write over the gradient it gets, were it not the caller's.
    virtual = virtualize(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), **options(front_end, rows()))
    gradient = torch.randn(3, 4)
    kept = gradient.clone()
    for _ in range(2):
        virtual(rows()).backward(gradient)
    assert torch.equal(gradient, kept)


@EITHER_FRONT_END
def test_hooks_on_parameters_are_called_with_the_same_gradients(front_end: str) -> None:
    def hooked(model: Any) -> list[Tensor]:
        seen: list[Tensor] = []
        handles = [
            model.conv.weight.register_hook(lambda gradient: gradient * 2),
            model.linear.bias.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone())),
        ]
        backward(model, images())
        backward(model, images())
        for handle in handles:
            handle.remove()
        return seen

    expected, found = check(ConvNet(), hooked, **options(front_end, images()))
    assert len(expected) == len(found) == 2
    assert all(map(torch.equal, expected, found))


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@PYTORCH_MAY_WARN
def test_backward_hooks_on_modules_are_called_when_captured_just_in_time() -> None:
    def hooked(model: Any) -> list[Tensor]:
        seen: list[Tensor] = []
        handle = model.linear.register_full_backward_hook(lambda _, __, outer: seen.append(outer[0].clone()))
        backward(model, images())
        backward(model, images())
        handle.remove()
        return seen

    expected, found = check(ConvNet(), hooked)
    assert len(expected) == len(found) == 2
    assert all(map(torch.equal, expected, found))


@PYTORCH_MAY_WARN
def test_a_step_with_its_optimizer_inside_trains_the_same() -> None:
    def step_of(model: nn.Module) -> Any:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(batch: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = model(batch).square().sum()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    plain = nn.Linear(4, 4)
    trained = copy.deepcopy(plain)
    expected, found = both(step_of(plain), virtualize(step_of(trained)), lambda step: [step(rows()) for _ in range(3)])
    assert torch.equal(torch.stack(expected), torch.stack(found))
    assert_same_state(plain, trained)
