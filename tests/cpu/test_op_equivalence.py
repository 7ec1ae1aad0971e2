"""Op by op: value, gradient, strides and the generator's state are those of eager PyTorch, through both front ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
import torch
from equivalence import both, check, differences, virtualize
from nets import EITHER_FRONT_END, PYTORCH_MAY_WARN, backward_of_each, options
from op_table import FUNCTIONS, KINDS, LAYERS, Function, ctc, image_batch
from torch import Tensor, nn

from vdnn.errors import CaptureFailed

pytestmark = pytest.mark.any_device


def value_and_gradient(function: Any) -> dict[str, Tensor | None]:
    x = image_batch().requires_grad_()
    y = function(x)
    backward_of_each(y)
    return {"value": y.detach(), "gradient": x.grad}


def all_of(functions: Mapping[str, Function]) -> Callable[..., tuple[Tensor, ...]]:
    """Every function of an input of its own, in one step."""
    return lambda *inputs: tuple(function(x) for function, x in zip(functions.values(), inputs, strict=True))


def values_and_gradients(step: Any, names: Iterable[str]) -> dict[str, Tensor | None]:
    inputs = {name: image_batch().requires_grad_() for name in names}
    values = dict(zip(inputs, step(*inputs.values()), strict=True))
    backward_of_each(tuple(values.values()))
    found: dict[str, Tensor | None] = {f"value of {name}": value.detach() for name, value in values.items()}
    return found | {f"gradient of {name}": x.grad for name, x in inputs.items()}


@EITHER_FRONT_END
@pytest.mark.parametrize("kind", KINDS)
def test_ops_give_the_same_bits(front_end: str, kind: str) -> None:
    functions = KINDS[kind]
    step = all_of(functions)
    sample = [image_batch().requires_grad_() for _ in functions]
    expected, found = both(
        step, virtualize(step, **options(front_end, *sample)), lambda run: values_and_gradients(run, functions)
    )
    assert list(differences(expected, found)) == []


@pytest.mark.slow
@EITHER_FRONT_END
@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS.keys())
def test_an_op_alone_gives_the_same_bits(front_end: str, function: Function) -> None:
    virtual = virtualize(function, **options(front_end, image_batch().requires_grad_()))
    expected, found = both(function, virtual, value_and_gradient)
    assert list(differences(expected, found)) == []


def test_an_op_that_looks_at_values_gives_the_same_bits_just_in_time() -> None:
    expected, found = both(ctc, virtualize(ctc), value_and_gradient)
    assert list(differences(expected, found)) == []


def test_an_op_that_looks_at_values_is_refused_ahead_of_time() -> None:
    with pytest.raises(CaptureFailed, match="depends on the values of tensors"):
        virtualize(ctc, sample=image_batch())


@PYTORCH_MAY_WARN
@EITHER_FRONT_END
@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS.keys())
def test_a_layer_gives_the_same_bits(front_end: str, make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    expected, found = check(make(), value_and_gradient, **options(front_end, image_batch().requires_grad_()))
    assert list(differences(expected, found)) == []
