"""Backward ops that read an encoding as it is make what aten makes of the values themselves, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from exactness import difference
from torch import Tensor

from vdnn.codecs import codec_for
from vdnn.codecs.kernels import kernels_of
from vdnn.codecs.kernels.tests_of_elements import Test
from vdnn.ir import Detail, Role, Storage
from vdnn.runtime.encoded_ops import masked_gradient, window_gradient
from vdnn.runtime.encodings import all_bytes, raw
from where import here, seeded

pytestmark = pytest.mark.any_device

aten = torch.ops.aten

SIZES = ((0,), (1,), (7,), (8,), (3, 5), (2, 3, 4, 5), (70_001,))
"""Around whole bytes of bits, and large enough for several threads."""


def numbers(*shape: int, seed: int = 0) -> Tensor:
    """Ordinary numbers, NaN, infinities and zeros of both signs."""
    x = torch.randn(*shape, generator=seeded(seed))
    for start, value in enumerate([float("nan"), float("inf"), -float("inf"), 0.0, -0.0]):
        x.view(-1)[start + seed :: 17] = value
    return x


def encoded(source: Tensor, codec: str, detail: Detail) -> Tensor:
    dtype = str(source.dtype).removeprefix("torch.")
    bound = codec_for(codec, Storage("map", source.nbytes, Role.FEATURE_MAP, dtype, ()), detail)
    encoding = torch.empty(bound.nbytes, dtype=torch.uint8)
    bound.encode(raw(all_bytes(source)), raw(encoding), kernels_of(here().type))
    return encoding


Masked = tuple[Detail, tuple[float, float, bool], Callable[[Tensor, Tensor], Tensor]]
MASKED: dict[str, Masked] = {
    "threshold": ((Test.ABOVE, 0.0, 0.0, 1.0, -1.0), (1.0, 0.0, True), lambda g, x: aten.threshold_backward(g, x, 0.0)),
    "threshold of 0.7": (
        (Test.ABOVE, 0.7, 0.0, 1.0, -1.0),
        (1.0, 0.0, True),
        lambda g, x: aten.threshold_backward(g, x, 0.7),
    ),
    "leaky relu": (
        (Test.GREATER, 0.0, 0.0, 1.0, 0.0),
        (1.0, 0.1, False),
        lambda g, x: aten.leaky_relu_backward(g, x, 0.1, False),
    ),
    "hard sigmoid": (
        (Test.BETWEEN, -3.0, 3.0, 0.0, 3.0),
        (1 / 6, 0.0, True),
        lambda g, x: aten.hardsigmoid_backward(g, x),
    ),
}


@pytest.mark.parametrize("shape", SIZES)
@pytest.mark.parametrize("op", MASKED)
def test_an_activations_backward_from_bits_is_atens(op: str, shape: tuple[int, ...]) -> None:
    detail, (on, off, zero_off), expected = MASKED[op]
    x, gradient = 3 * numbers(*shape), numbers(*shape, seed=1)
    found = masked_gradient(gradient, encoded(x, "sign-mask", detail), None, on, off, zero_off)
    assert difference(expected(gradient, x), found) == ""


@pytest.mark.parametrize("shape", [(16,), (2, 8, 4, 4), (65_536,)])
def test_a_hard_tanhs_backward_from_bits_is_atens(shape: tuple[int, ...]) -> None:
    """Whole vectors of elements: what aten answers for a NaN in the rest of one depends on where it stands."""
    x, gradient = numbers(*shape), numbers(*shape, seed=1)
    encoding = encoded(x, "bool-mask", (Test.BETWEEN, -0.3, 0.7, 0.2, -1.6))
    found = masked_gradient(gradient, encoding, None, 1.0, 0.0, True)
    assert difference(aten.hardtanh_backward(gradient, x, -0.3, 0.7), found) == ""


@pytest.mark.parametrize("shape", SIZES)
@pytest.mark.parametrize("probability", [0.1, 0.5, 0.7])
def test_dropouts_backward_from_bits_is_a_product(probability: float, shape: tuple[int, ...]) -> None:
    noise = torch.empty(shape).bernoulli_(1 - probability).div_(1 - probability)
    gradient = numbers(*shape)
    on = float(torch.ones(()).div_(1 - probability))
    encoding = encoded(noise, "bool-mask", (Test.NONZERO, 0.0, 0.0, on, 0.0))
    assert difference(gradient * noise, masked_gradient(gradient, encoding, None, on, 0.0, False)) == ""


def test_the_gradient_may_be_overwritten_by_the_result() -> None:
    x, gradient = numbers(1001), numbers(1001, seed=1)
    expected = aten.threshold_backward(gradient, x, 0.0)
    found = masked_gradient(gradient, encoded(x, "sign-mask", MASKED["threshold"][0]), gradient, 1.0, 0.0, True)
    assert found is gradient
    assert difference(expected, gradient) == ""


def test_the_result_lies_in_memory_as_the_gradient_does() -> None:
    x, gradient = (
        t.contiguous(memory_format=torch.channels_last) for t in (numbers(2, 3, 4, 5), torch.ones(2, 3, 4, 5))
    )
    found = masked_gradient(gradient, encoded(x, "sign-mask", MASKED["threshold"][0]), None, 1.0, 0.0, True)
    assert difference(aten.threshold_backward(gradient, x, 0.0), found) == ""


POOLS: dict[str, dict[str, Any]] = {
    "plain": {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0), "dilation": (1, 1)},
    "overlapping": {"kernel": (3, 3), "stride": (1, 1), "padding": (1, 1), "dilation": (1, 1)},
    "dilated": {"kernel": (3, 2), "stride": (2, 1), "padding": (1, 0), "dilation": (2, 3)},
    "wide": {"kernel": (1, 7), "stride": (1, 3), "padding": (0, 3), "dilation": (1, 1)},
    "large": {"kernel": (5, 5), "stride": (4, 4), "padding": (2, 2), "dilation": (1, 1)},
}


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("shape", [(1, 1, 9, 10), (3, 5, 12, 11), (2, 64, 40, 40)])
@pytest.mark.parametrize("pool", POOLS)
def test_a_max_pools_backward_from_encodings_is_atens(
    pool: str, shape: tuple[int, ...], layout: torch.memory_format
) -> None:
    x = numbers(*shape).contiguous(memory_format=layout)
    kernel, stride, padding, dilation = POOLS[pool].values()
    output, indices = F.max_pool2d(x, kernel, stride, padding, dilation, return_indices=True)
    gradient = torch.empty_like(output).copy_(numbers(*output.shape, seed=2))
    expected = aten.max_pool2d_with_indices_backward(gradient, x, kernel, stride, padding, dilation, False, indices)
    planes = (prod(shape[:2]), 1) if layout is torch.contiguous_format or shape[1] == 1 else (shape[0], shape[1])
    sizes = (1, *kernel, 1, *stride, 0, *padding, 1, *dilation, 1, *shape[2:], 1, *output.shape[2:])
    detail: Detail = (*sizes, *planes)
    encoding = encoded(indices, "window-index", detail)
    found = window_gradient(gradient, encoding, detail, tuple(x.shape), x.stride())
    assert difference(expected, found) == ""
