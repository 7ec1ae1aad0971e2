"""`verify="first"`: the first step of every captured program is held against plain PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import vdnn
from vdnn.errors import InvalidInput, StepDiffers
from vdnn.runtime.executor import Executor
from where import here, risen_nbytes, rng_state

pytestmark = pytest.mark.any_device

VERIFIED = "verified: first step equal to plain PyTorch"


class Net(nn.Module):
    """Has running statistics, draws random numbers, and counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8 * 14 * 14, 10)

    def forward(self, x: Tensor) -> Tensor:
        hidden = nn.functional.dropout(torch.relu(self.norm(self.conv(x))), 0.3, self.training)
        return self.head(hidden.flatten(1))


def made() -> tuple[Net, Tensor, Tensor]:
    torch.manual_seed(0)
    return Net(), torch.randn(8, 3, 16, 16), torch.randint(10, (8,))


def state_after(net: nn.Module, call: Callable[[Tensor], Tensor], x: Tensor, target: Tensor) -> list[Tensor]:
    """Of two batches whose gradients are added up: what training goes on from."""
    losses = []
    for seed in range(2):
        torch.manual_seed(seed)
        loss = cross_entropy(call(x), target)
        loss.backward()
        losses.append(loss.detach())
    gradients = [parameter.grad for parameter in net.parameters() if parameter.grad is not None]
    return [*losses, *gradients, *net.buffers(), rng_state()]


def verified(virtual: Any) -> tuple[str, ...]:
    return vdnn.report(virtual).verified


WAYS: dict[str, dict[str, Any]] = {
    "as it is called": {},
    "with a sample": {"sample": True},
    "within an ample budget": {"budget": "60MiB"},
    "encoded": {"strategy": "gist"},
    "recomputed": {"strategy": "recompute-cost"},
}


@pytest.mark.parametrize("way", WAYS)
def test_a_first_step_is_verified_and_leaves_what_a_step_leaves(way: str) -> None:
    net, x, target = made()
    plain, options = copy.deepcopy(net), dict(WAYS[way])
    if options.pop("sample", False):
        options["sample"] = (x,)
    virtual = vdnn.virtualize(net, verify="first", **options)
    expected, found = state_after(plain, plain, x, target), state_after(net, virtual, x, target)
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    assert verified(virtual) == (f"Net: {VERIFIED}",)
    assert VERIFIED in str(vdnn.report(virtual))


def test_a_function_with_its_loss_inside_is_verified() -> None:
    net, x, target = made()

    def step(x: Tensor, target: Tensor) -> Tensor:
        return cross_entropy(net(x), target)

    virtual = vdnn.virtualize(step, verify="first")
    virtual(x, target).backward()
    assert len(verified(virtual)) == 1
    assert VERIFIED in verified(virtual)[0]


def test_every_captured_program_has_its_first_step() -> None:
    net, x, target = made()
    virtual = vdnn.virtualize(net, verify="first")
    for rows in (8, 4, 8, 4):
        cross_entropy(virtual(x[:rows]), target[:rows]).backward()
    virtual.eval()
    cross_entropy(virtual(x), target).backward()
    assert verified(virtual) == (f"Net: {VERIFIED}", f"Net #2: {VERIFIED}", f"Net #3: {VERIFIED}")


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # Dynamo asks for it
def test_the_gradient_of_an_argument_is_verified_too() -> None:
    net, x, target = made()
    virtual = vdnn.virtualize(net, verify="first")
    scale = torch.ones(1, requires_grad=True)
    cross_entropy(virtual(x * scale), target).backward()
    assert verified(virtual) == (f"Net: {VERIFIED}",)
    assert scale.grad is not None


@pytest.mark.parametrize("position", [0, 3], ids=["a parameter", "another"])
def test_a_gradient_that_differs_is_an_error_with_its_name(position: int, monkeypatch: pytest.MonkeyPatch) -> None:
    backward = Executor._backward_of

    def off_by_a_bit(self: Executor, *args: Any) -> Any:
        gradients = list(backward(self, *args))
        numbers = [number for number, gradient in enumerate(gradients) if gradient is not None]
        gradients[numbers[position]] = gradients[numbers[position]] * 1.0000001
        return gradients

    monkeypatch.setattr(Executor, "_backward_of", off_by_a_bit)
    net, x, target = made()
    virtual = vdnn.virtualize(net, verify="first")
    with pytest.raises(
        StepDiffers, match=r"1 tensors differ(.*\n)*.*gradient of \w+\.\w+: by up to .*(\n.*)*plain model"
    ):
        cross_entropy(virtual(x), target).backward()
    assert "differs from plain PyTorch in gradient of" in verified(virtual)[0]


def test_running_statistics_and_random_numbers_that_differ_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = Executor._forward_of
    net, x, target = made()

    def another(self: Executor, *args: Any) -> Any:
        results = forward(self, *args)
        with torch.no_grad():
            net.norm.running_mean.add_(1.0)  # type: ignore[operator]
        torch.rand(1)
        return results

    monkeypatch.setattr(Executor, "_forward_of", another)
    virtual = vdnn.virtualize(net, verify="first")
    with pytest.raises(StepDiffers, match=r"buffer norm.running_mean(.*\n)*.*generator of"):
        cross_entropy(virtual(x), target).backward()


def deep() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(128, 128), nn.Tanh())]), torch.randn(
        2048, 128
    )


def test_what_does_not_fit_beside_is_not_verified_and_says_what_it_needs() -> None:
    net, x = deep()
    virtual = vdnn.virtualize(net, verify="first", budget="80%")
    virtual(x).sum().backward()
    (found,) = verified(virtual)
    assert found.startswith("Sequential: not verified: needs ")
    assert ", has " in found


def test_verifying_stays_within_the_budget() -> None:
    net, x = deep()
    virtual = vdnn.virtualize(net, verify="first", budget="130%")
    rise_nbytes = risen_nbytes(lambda: virtual(x).sum().backward())
    assert verified(virtual) == (f"Sequential: {VERIFIED}",)
    before_nbytes = sum(tensor.nbytes for tensor in (*net.parameters(), x))
    budget_nbytes = vdnn.report(virtual).budget_nbytes
    assert budget_nbytes is not None
    assert before_nbytes + rise_nbytes <= budget_nbytes


def test_gradients_are_not_held_where_the_budget_has_no_room_for_them_twice() -> None:
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 512)), torch.randn(64, 512)
    virtual = vdnn.virtualize(net, verify="first", budget="100%")
    rise_nbytes = risen_nbytes(lambda: virtual(x).sum().backward())
    if here().type == "cpu":  # an accelerator's are held by the host
        assert "not verified: needs " in verified(virtual)[0]
    before_nbytes = sum(tensor.nbytes for tensor in (*net.parameters(), x))
    budget_nbytes = vdnn.report(virtual).budget_nbytes
    assert budget_nbytes is not None
    assert before_nbytes + rise_nbytes <= budget_nbytes


def test_random_numbers_that_are_drawn_before_backward_are_not_drawn_again() -> None:
    net, x, target = made()
    virtual = vdnn.virtualize(net, verify="first")
    loss = cross_entropy(virtual(x), target)
    torch.rand(3)
    before = rng_state()
    loss.backward()
    assert torch.equal(rng_state(), before)
    assert verified(virtual) == (f"Net: {VERIFIED}",)


def test_hooks_are_called_once() -> None:
    net, x, target = made()
    calls: list[str] = []
    net.head.weight.register_hook(lambda _: calls.append("gradient"))
    net.head.weight.register_post_accumulate_grad_hook(lambda _: calls.append("accumulated"))
    virtual = vdnn.virtualize(net, verify="first")
    cross_entropy(virtual(x), target).backward()
    assert sorted(calls) == ["accumulated", "gradient"]
    assert verified(virtual) == (f"Net: {VERIFIED}",)


def test_a_module_with_hooks_is_not_run_twice() -> None:
    net, x, target = made()
    calls: list[int] = []
    net.conv.register_forward_hook(lambda *_: calls.append(1))
    virtual = vdnn.virtualize(net, verify="first")
    cross_entropy(virtual(x), target).backward()
    assert "not verified: conv has hooks" in verified(virtual)[0]


def test_a_parameter_that_is_updated_within_backward_is_not_compared() -> None:
    net, x, target = made()

    def update(parameter: Tensor) -> None:
        with torch.no_grad():
            parameter.sub_(0.1 * parameter.grad)  # type: ignore[operator]

    net.head.weight.register_post_accumulate_grad_hook(update)
    virtual = vdnn.virtualize(net, verify="first")
    cross_entropy(virtual(x), target).backward()
    assert "head.weight was written to before backward was over" in verified(virtual)[0]


def test_an_output_that_is_changed_in_place_is_not_compared() -> None:
    net, x, target = made()
    plain, virtual = copy.deepcopy(net), vdnn.virtualize(net, verify="first")
    for call in (plain, virtual):
        torch.manual_seed(1)
        cross_entropy(call(x).relu_(), target).backward()
    assert "not verified: an output was written to" in verified(virtual)[0]
    assert torch.equal(plain.head.weight.grad, net.head.weight.grad)  # type: ignore[arg-type]


def test_a_call_with_other_parameters_is_not_compared_with_one_with_its_own() -> None:
    net, x, target = made()
    virtual = vdnn.virtualize(net, verify="first")
    others = {name: p.detach().clone().requires_grad_() for name, p in net.named_parameters()}
    out = torch.func.functional_call(virtual, others, (x,))
    cross_entropy(out, target).backward()
    assert "conv.weight was written to" in verified(virtual)[0]


def test_a_step_without_a_backward_says_nothing_and_the_next_one_is_verified() -> None:
    net, x, target = made()
    virtual = vdnn.virtualize(net, verify="first")
    virtual(x)
    assert "not verified: no first step has come to its backward yet" in verified(virtual)[0]
    cross_entropy(virtual(x), target).backward()
    assert verified(virtual) == (f"Net: {VERIFIED}",)


def test_a_model_that_cannot_be_captured_is_plain_already() -> None:
    def branching(x: Tensor, weight: Tensor) -> Tensor:
        return (x * weight).sum() if float(x.sum()) > 0 else (x - weight).sum()

    virtual = vdnn.virtualize(branching, verify="first", budget="1MiB")
    weight = torch.ones(64, requires_grad=True)
    virtual(torch.ones(64), weight).backward()
    assert all("not verified: it runs as it is, in a tensor cache" in found for found in verified(virtual))


@pytest.mark.parametrize("inexact", [{"lossy": "fp16"}, {"exact": False}, {"compiler": "inductor"}])
def test_what_gives_bits_up_cannot_be_verified(inexact: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=r"verify='first' asks for the bits of plain PyTorch.*leave out one"):
        vdnn.virtualize(made()[0], verify="first", **inexact)


def test_a_backend_of_torch_compile_has_no_model_to_verify_with() -> None:
    net, x, _ = made()
    compiled: Any = torch.compile(net, backend="vdnn", options={"verify": "first"})
    with pytest.raises(Exception, match=r"cannot verify='first'.*vdnn.virtualize"):
        compiled(x)
