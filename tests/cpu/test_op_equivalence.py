"""Op by op: value, gradient, strides and the generator's state are those of eager PyTorch, through both front ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from equivalence import both, check, differences, virtualize
from nets import EITHER_FRONT_END, PYTORCH_MAY_WARN, backward_of_each, options
from op_table import FUNCTIONS, LAYERS, Function, ctc, image_batch
from torch import Tensor, nn

from vdnn.errors import CaptureFailed


def value_and_gradient(function: Any) -> dict[str, Tensor | None]:
    x = image_batch().requires_grad_()
    y = function(x)
    backward_of_each(y)
    return {"value": y.detach(), "gradient": x.grad}


@EITHER_FRONT_END
@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS.keys())
def test_an_op_gives_the_same_bits(front_end: str, function: Function) -> None:
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
