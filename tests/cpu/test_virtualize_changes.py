"""What may change between two steps: shapes, modes, hooks, settings, parameters. Nothing of a former capture sticks."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from equivalence import both, check, differences, executors, gradients, pair, state, virtualize
from nets import EITHER_FRONT_END, ConvNet, Using, backward, images, options, rows
from torch import Tensor, nn

from vdnn.compile import session
from vdnn.errors import Unsupported

pytestmark = pytest.mark.any_device


def step_twice_with(change: Any) -> Any:
    """A step, the change, and another step."""

    def steps(model: Any) -> None:
        backward(model, images())
        change(model)
        backward(model, images())

    return steps


@EITHER_FRONT_END
def test_every_batch_size_is_captured_once(front_end: str) -> None:
    plain, virtual = pair(ConvNet(), **options(front_end, images(4)))
    for batch in (4, 6, 4, 1, 6):
        backward(plain, images(batch))
        backward(virtual, images(batch))
    assert len(executors(virtual)) == 3


@EITHER_FRONT_END
def test_batches_of_changing_size_give_the_same_gradients(front_end: str) -> None:
    def steps(model: Any) -> None:
        for batch in (4, 6, 4, 1, 6):
            backward(model, images(batch))

    check(ConvNet(), steps, **options(front_end, images()))


@EITHER_FRONT_END
def test_a_stream_of_new_shapes_is_refused_with_the_way_out(front_end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "MAX_CAPTURES", 3)
    virtual = virtualize(nn.Linear(4, 4), **options(front_end, rows(1)))
    for batch in range(1, 4):
        backward(virtual, rows(batch))
    with pytest.raises(Unsupported, match=r"Linear was captured 3 times.*Pad batches to a few sizes"):
        backward(virtual, rows(9))
    backward(virtual, rows(2))


def test_a_model_that_is_gone_takes_its_captures_along() -> None:
    """Dynamo would keep them for as long as the process lives. A backward that is still to come has what it needs."""
    virtual, x = virtualize(nn.Linear(4, 4)), rows().requires_grad_()
    loss = virtual(x).sum()
    executor = weakref.ref(*executors(virtual))
    del virtual
    gc.collect()
    loss.backward()
    del loss
    for _ in range(2):  # the model, then what Dynamo held for it
        gc.collect()
    assert executor() is None
    assert x.grad is not None


def test_more_shapes_than_dynamos_own_limit_are_all_captured() -> None:
    virtual = virtualize(nn.Linear(4, 4))
    for batch in range(1, 13):  # Dynamo gives up after 8 unless told otherwise
        backward(virtual, rows(batch))
    assert len(executors(virtual)) == 12


CHANGES = {
    "dropout rate": lambda model: setattr(model.dropout, "p", 0.7),
    "momentum of statistics": lambda model: setattr(model.norm, "momentum", 0.5),
    "frozen layer": lambda model: model.conv.requires_grad_(False),
    "frozen and thawed": lambda model: model.conv.requires_grad_(False).requires_grad_(True),
    "replaced parameter": lambda model: setattr(model.linear, "weight", nn.Parameter(torch.ones(4, 8))),
    "layer in eval mode": lambda model: model.norm.eval(),
    "loaded state": lambda model: model.load_state_dict({k: v * 0 + 1 for k, v in model.state_dict().items()}),
    "forward hook": lambda model: model.conv.register_forward_hook(lambda _, __, output: output * 2),
    "forward pre-hook": lambda model: model.conv.register_forward_pre_hook(lambda _, inputs: (inputs[0] + 1,)),
    "hook on the root": lambda model: model.register_forward_hook(lambda _, __, output: output * 2),
}


@EITHER_FRONT_END
def test_changes_one_after_another_take_effect(front_end: str) -> None:
    plain, virtual = pair(ConvNet(), **options(front_end, images()))
    both(plain, virtual, lambda model: backward(model, images()))
    for name, change in CHANGES.items():
        for model in (plain, virtual):
            model.zero_grad()
            change(model)
        both(plain, virtual, lambda model: backward(model, images()))
        found = [*differences(gradients(plain), gradients(virtual)), *differences(state(plain), state(virtual))]
        assert found == [], name


@pytest.mark.slow
@EITHER_FRONT_END
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_change_between_two_steps_takes_effect(front_end: str, change: Any) -> None:
    check(ConvNet(), step_twice_with(change), **options(front_end, images()))


@EITHER_FRONT_END
def test_a_replaced_layer_takes_effect(front_end: str) -> None:
    def steps(model: Any) -> None:
        backward(model, images())
        model.linear = nn.Linear(8, 2)
        backward(model, images())

    check(ConvNet(), steps, **options(front_end, images()))


@EITHER_FRONT_END
def test_a_removed_hook_is_called_no_more(front_end: str) -> None:
    def steps(model: Any) -> None:
        hook = model.conv.register_forward_hook(lambda _, __, output: output * 2)
        backward(model, images())
        hook.remove()
        backward(model, images())

    check(ConvNet(), steps, **options(front_end, images()))


@EITHER_FRONT_END
def test_a_model_that_moves_to_float64_is_followed(front_end: str) -> None:
    def steps(model: Any) -> None:
        backward(model, images())
        model.zero_grad()
        backward(model.double(), images().double())

    check(ConvNet(), steps, **options(front_end, images()))


@pytest.fixture
def float64_by_default() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@EITHER_FRONT_END
@pytest.mark.usefixtures("float64_by_default")
def test_the_default_dtype_is_followed(front_end: str) -> None:
    def noisy(self: Any, batch: Tensor) -> Tensor:
        return self.linear(batch) + torch.ones(4) * 1.1 + torch.rand(4)

    batch = torch.ones(3, 4)
    model = Using(noisy, linear=nn.Linear(4, 4))
    check(model, lambda virtual: backward(virtual, batch), **options(front_end, batch))


@EITHER_FRONT_END
def test_keyword_arguments_choose_their_own_program(front_end: str) -> None:
    def scaled(self: Any, batch: Tensor, *, scale: float = 2.0, mask: Tensor | None = None) -> dict[str, Tensor]:
        output = self.linear(batch) * scale
        return {"output": output if mask is None else output * mask}

    def steps(model: Any) -> None:
        for keywords in ({}, {"scale": 3.0}, {"mask": rows() > 0}, {"mask": None}):
            model(rows(), **keywords)["output"].sum().backward()

    check(Using(scaled, linear=nn.Linear(4, 4)), steps, **options(front_end, rows()))


@EITHER_FRONT_END
def test_lists_of_other_lengths_choose_their_own_program(front_end: str) -> None:
    def summed(self: Any, batches: list[Tensor]) -> Tensor:
        return torch.stack([self.linear(batch) for batch in batches]).sum(0)

    def steps(model: Any) -> None:
        backward(model, [rows(), rows() + 1])
        backward(model, [rows()])

    check(Using(summed, linear=nn.Linear(4, 4)), steps, **options(front_end, [rows(), rows() + 1]))


def test_python_state_of_a_model_is_followed_just_in_time() -> None:
    def counting(self: Any, batch: Tensor) -> Tensor:
        self.calls += 1
        return self.linear(batch) * self.calls

    def steps(model: Any) -> int:
        for _ in range(3):
            backward(model, rows())
        return model.calls

    expected, found = check(Using(counting, linear=nn.Linear(4, 4), calls=0), steps)
    assert expected == found == 3
