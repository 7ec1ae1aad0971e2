"""Every op whose backward is served from an encoding has the gradient it has in plain PyTorch, bit for bit.

Rows of `capture/ops/information.py`, all of a kind in one step, over layouts, dtypes and odd values; each says which
encoding was used, so that a row that stops applying is noticed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from equivalence import assert_measured_as_simulated
from exactness import actions_of, encodings_of, together, trained, with_shift
from torch import Tensor, nn

from vdnn.plan.model.actions import Drop
from where import seeded

pytestmark = pytest.mark.any_device

Function = Callable[[Any, Tensor], Any]


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=seeded(0))


def odd_values(*shape: int) -> Tensor:
    """NaN, both infinities, both zeros and a denormal among ordinary numbers."""
    x = random(*shape)
    for start, value in enumerate([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e-40]):
        x.view(-1)[start::13] = value
    return x


INPUTS: dict[str, Tensor] = {
    "odd sizes": random(2, 3, 9, 7),
    "a batch of one": random(1, 3, 9, 7),
    "odd values": odd_values(2, 4, 8, 8),
    "channels last": random(2, 3, 9, 7).contiguous(memory_format=torch.channels_last),
    "transposed": random(3, 2, 7, 9).permute(1, 0, 3, 2),
    "with holes": random(2, 3, 9, 14)[..., ::2],
    "float64": random(2, 3, 9, 7).double(),
    "bfloat16": random(2, 3, 9, 7).bfloat16(),
}
EACH_INPUT = pytest.mark.parametrize("given", INPUTS)

QUESTIONS: dict[str, tuple[Function, str]] = {
    "relu before a pool": (lambda _, x: F.avg_pool2d(F.relu(x), 2), "sign-mask"),
    "relu in place before a pool": (lambda _, x: F.avg_pool2d(F.relu_(x * 1.5), 2), "sign-mask"),
    "leaky relu": (lambda _, x: F.leaky_relu(x, 0.1), "sign-mask"),
    "leaky relu with a slope below zero": (lambda _, x: F.leaky_relu(x, -0.5), "sign-mask"),
    "leaky relu with a slope above one": (lambda _, x: F.leaky_relu(x, 3.0), "sign-mask"),
    "threshold above zero": (lambda _, x: F.threshold(x, 0.5, 2.0), "bool-mask"),
    "threshold between two short floats": (lambda _, x: F.threshold(x, 0.3, 2.0), "bool-mask"),
    "threshold above one": (lambda _, x: F.threshold(x, 1.25, -1.0), "bool-mask"),
    "threshold below zero": (lambda _, x: F.threshold(x, -1.0, -3.0), "bool-mask"),
    "relu6": (lambda _, x: F.relu6(x * 4), "bool-mask"),
    "hardtanh": (lambda _, x: F.hardtanh(x, -0.3, 0.7), "bool-mask"),
    "hardtanh bounded above": (lambda _, x: F.hardtanh(x, -float("inf"), 0.7), "bool-mask"),
    "hardtanh bounded below": (lambda _, x: F.hardtanh(x, 0.2, float("inf")), "bool-mask"),
    "hardsigmoid": (lambda _, x: F.hardsigmoid(x * 3), "bool-mask"),
}


@EACH_INPUT
def test_activations_are_exact_from_bits(given: str) -> None:
    functions = {op: function for op, (function, _) in QUESTIONS.items()}
    virtual = trained(together(functions, INPUTS[given]), INPUTS[given])
    assert_measured_as_simulated(virtual)
    encodings = encodings_of(virtual).values()
    found = {op: encoding.removesuffix(", read") for op, encoding in zip(QUESTIONS, encodings, strict=True)}
    assert found == {op: codec for op, (_, codec) in QUESTIONS.items()}
    assert given != "odd sizes" or all(encoding.endswith(", read") for encoding in encodings)


PROBABILITIES = (0.1, 0.3, 0.5, 0.9)


def dropout(probability: float) -> Function:
    return lambda _, x: F.dropout(x, probability)


@pytest.mark.parametrize("given", ["odd sizes", "odd values", "channels last", "with holes", "float64", "bfloat16"])
def test_dropout_is_exact_from_bits(given: str) -> None:
    functions = {f"dropout of {int(100 * p)} %": dropout(p) for p in PROBABILITIES}
    virtual = trained(together(functions, INPUTS[given]), INPUTS[given])
    assert_measured_as_simulated(virtual)
    encodings = [encoding.removesuffix(", read") for encoding in encodings_of(virtual).values()]
    assert encodings == ["bool-mask"] * len(PROBABILITIES)


def test_dropout_in_place_is_exact_from_bits() -> None:
    x = INPUTS["odd values"]
    virtual = trained(with_shift(lambda _, x: F.dropout(x * 2, 0.4, inplace=True), x), x)
    assert list(encodings_of(virtual).values()) == ["bool-mask, read"]


@pytest.mark.parametrize("form", [F.dropout1d, F.dropout2d, F.alpha_dropout, F.feature_alpha_dropout])
def test_relatives_of_dropout_are_exact(form: Any) -> None:
    x = random(4, 64, 8)
    trained(with_shift(lambda _, x: form(x.unsqueeze(-1) if form is F.dropout2d else x, 0.3, training=True), x), x)


MASKS: dict[str, Function] = {
    "masked fill": lambda _, x: x.masked_fill(x > 0.3, 1.0),
    "where": lambda _, x: torch.where(x.abs() > 0.5, x, x * 2),
    "where twice": lambda _, x: torch.where(x > 0, x.masked_fill(x > 1, 0.5), x * 3),
    "masked product": lambda _, x: x * (x > 0.1),
}
NUM_MASKS = 5
"""One for every function, and a second for `where twice`."""


@EACH_INPUT
def test_masks_that_forward_makes_are_kept_as_bits(given: str) -> None:
    virtual = trained(together(MASKS, INPUTS[given]), INPUTS[given])
    assert_measured_as_simulated(virtual)
    encodings = list(encodings_of(virtual).values())
    assert set(encodings) == {"bool-mask"}
    assert len(encodings) == NUM_MASKS


POOLS: dict[str, Function] = {
    "2 x 2": lambda _, x: F.max_pool2d(x, 2),
    "overlapping, padded": lambda _, x: F.max_pool2d(x, 3, 2, 1),
    "dilated": lambda _, x: F.max_pool2d(x, 3, 1, 1, 2),
    "with a ceiling": lambda _, x: F.max_pool2d(x, 2, 2, ceil_mode=True),
    "a window of 25": lambda _, x: F.max_pool2d(x, 5, 1, 2),
    "oblong": lambda _, x: F.max_pool2d(x, (2, 3), (1, 2), (1, 0)),
    "behind a relu": lambda _, x: F.max_pool2d(F.relu(x), 3, 2, 1),
    "one-dimensional": lambda _, x: F.max_pool1d(x.flatten(1, 2), 3, 2),
}


@EACH_INPUT
def test_max_pools_are_exact_from_window_encodings(given: str) -> None:
    virtual = trained(together(POOLS, INPUTS[given]), INPUTS[given])
    assert_measured_as_simulated(virtual)
    encodings = {
        name: encoding for name, encoding in encodings_of(virtual).items() if name.startswith("max_pool2d_with_indices")
    }
    assert [encoding.removesuffix(", read") for encoding in encodings.values()] == ["window-index"] * len(POOLS)


def test_a_max_pool_without_a_batch_is_exact_from_window_encodings() -> None:
    virtual = trained(with_shift(POOLS["overlapping, padded"], random(3, 9, 7)), random(3, 9, 7))
    assert encodings_of(virtual) == {"max_pool2d_with_indices.1": "window-index, read"}


POOLS_3D: dict[str, Function] = {
    "2 x 2 x 2": lambda _, x: F.max_pool3d(x, 2),
    "overlapping, padded, dilated": lambda _, x: F.max_pool3d(x, (3, 2, 2), 1, (1, 1, 0), (1, 2, 1)),
}


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last_3d])
@pytest.mark.parametrize("op", POOLS_3D)
def test_a_three_dimensional_pool_is_exact_from_window_encodings(op: str, layout: torch.memory_format) -> None:
    x = random(2, 3, 5, 6, 7).contiguous(memory_format=layout)
    virtual = trained(with_shift(POOLS_3D[op], x), x)
    assert encodings_of(virtual) == {"max_pool3d_with_indices.1": "window-index"}


def unpooled(_: Any, x: Tensor) -> Tensor:
    return F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2, output_size=list(x.shape))


def test_indices_that_an_unpooling_reads_too_stay_what_they_are() -> None:
    x = random(2, 3, 8, 6)
    virtual = trained(with_shift(unpooled, x), x)
    assert "max_pool2d_with_indices.1" not in encodings_of(virtual)


def test_indices_that_a_user_keeps_stay() -> None:
    x = random(2, 3, 8, 6)
    virtual = trained(with_shift(lambda _, x: F.max_pool2d(x, 2, return_indices=True), x), x)
    assert encodings_of(virtual) == {}


def test_an_adaptive_pool_drops_its_input_and_keeps_its_indices() -> None:
    x = random(2, 3, 9, 7)
    virtual = trained(with_shift(lambda _, x: F.adaptive_max_pool2d(x, (3, 2)), x), x)
    assert {type(action) for action in actions_of(virtual).values()} == {Drop}


def test_average_pooling_drops_its_input() -> None:
    x = random(2, 3, 9, 7)
    virtual = trained(with_shift(lambda _, x: F.avg_pool2d(x, 2), x), x)
    assert {type(action) for action in actions_of(virtual).values()} == {Drop}


@pytest.mark.parametrize("given", ["odd sizes", "odd values", "channels last", "transposed", "with holes", "bfloat16"])
def test_a_relu_before_a_convolution_is_exact_from_its_values_that_are_not_zero(given: str) -> None:
    x = INPUTS[given]
    conv = nn.Conv2d(x.shape[1], 2, 3).to(x.dtype)
    virtual = trained(with_shift(lambda self, x: self.conv(F.relu(x)), x, conv=conv), x)
    assert list(encodings_of(virtual).values()) == ["sparse"]


def test_a_product_of_sparse_maps_is_exact() -> None:
    x = INPUTS["odd values"]
    virtual = trained(with_shift(lambda _, x: F.relu(x) * F.relu(-x), x), x)
    assert set(encodings_of(virtual).values()) == {"sparse"}


def test_few_values_are_exact_in_the_published_form() -> None:
    x = random(2, 4, 16, 16) - 3
    conv = nn.Conv2d(4, 2, 3)
    virtual = trained(with_shift(lambda self, x: self.conv(F.relu(x)), x, conv=conv), x, density=0.05)
    assert list(encodings_of(virtual).values()) == ["csr"]
