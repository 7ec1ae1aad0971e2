"""Random small networks (chains, branches, in-place ops, dropout, views) train bit for bit, in the bytes simulated."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from equivalence import assert_measured_as_simulated, assert_same, train, virtualize
from hypothesis import given, reject
from hypothesis import strategies as st
from nets import EITHER_FRONT_END, options
from torch import Tensor, nn

from random_examples import examples
from vdnn.errors import InexactTrace

pytestmark = pytest.mark.any_device

CHANNELS = 4

ELEMENTWISE: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "relu_": lambda x: F.relu(x * 1, inplace=True),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "gelu": F.gelu,
    "leaky_relu": F.leaky_relu,
    "hardtanh": F.hardtanh,
    "square": torch.square,
    "scale and shift": lambda x: x * 0.5 + 1,
    "clone, mul_, add_": lambda x: x.clone().mul_(0.5).add_(1),
    "transpose there and back": lambda x: x.transpose(2, 3).contiguous().transpose(2, 3),
    "flatten, relu, unflatten": lambda x: F.relu(x.flatten(2)).view_as(x),
    "halves swapped": lambda x: torch.cat(x.chunk(2, 1)[::-1], 1),
    "first channel zeroed": lambda x: x.index_fill(1, torch.tensor([0]), 0.0),
    "max pool and back": lambda x: F.interpolate(F.max_pool2d(x, 2), scale_factor=2),
    "average pool": lambda x: F.avg_pool2d(x, 3, 1, 1),
    "softmax": lambda x: x.softmax(1),
}

LAYERS: dict[str, Callable[[], nn.Module]] = {
    "conv": lambda: nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1),
    "conv1x1": lambda: nn.Conv2d(CHANNELS, CHANNELS, 1, bias=False),
    "batch norm": lambda: nn.BatchNorm2d(CHANNELS),
    "group norm": lambda: nn.GroupNorm(2, CHANNELS),
    "dropout": lambda: nn.Dropout(0.3),
    "dropout 0.025": lambda: nn.Dropout(0.025),
    "relu in place": lambda: nn.ReLU(inplace=True),
}

JOINS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": torch.add,
    "multiply": torch.mul,
    "subtract": torch.sub,
    "gate": lambda a, b: a.sigmoid() * b,
    "mean of both": lambda a, b: torch.stack([a, b]).mean(0),
}

Block = tuple[str, ...]
blocks = st.recursive(
    st.one_of(
        st.tuples(st.just("function"), st.sampled_from(sorted(ELEMENTWISE))),
        st.tuples(st.just("layer"), st.sampled_from(sorted(LAYERS))),
    ),
    lambda inner: st.one_of(
        st.tuples(st.just("chain"), st.lists(inner, min_size=1, max_size=4)),
        st.tuples(st.just("branch"), st.sampled_from(sorted(JOINS)), inner, inner),
    ),
    max_leaves=8,
)


class Branch(nn.Module):
    def __init__(self, join: str, left: nn.Module, right: nn.Module) -> None:
        super().__init__()
        self.join, self.left, self.right = join, left, right

    def forward(self, x: Tensor) -> Tensor:
        return JOINS[self.join](self.left(x), self.right(x))


class Elementwise(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, x: Tensor) -> Tensor:
        return ELEMENTWISE[self.name](x)


class Copy(nn.Module):
    """Makes an in-place layer harmless to whoever else reads its input, as a careful author would."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 1


def build(block: Any) -> nn.Module:
    kind, *rest = block
    if kind == "function":
        return Elementwise(rest[0])
    if kind == "layer":
        layer = LAYERS[rest[0]]()
        return nn.Sequential(Copy(), layer) if rest[0] == "relu in place" else layer
    if kind == "chain":
        return nn.Sequential(*map(build, rest[0]))
    return Branch(rest[0], build(rest[1]), build(rest[2]))


class Network(nn.Module):
    def __init__(self, block: Any) -> None:
        super().__init__()
        self.stem, self.body, self.head = nn.Conv2d(3, CHANNELS, 1), build(block), nn.Linear(CHANNELS, 2)

    def forward(self, images: Tensor, target: Tensor) -> Tensor:
        features = self.body(self.stem(images))
        return F.cross_entropy(self.head(features.mean((2, 3))), target)


@EITHER_FRONT_END
@pytest.mark.slow
@examples(15)
@given(block=blocks)
def test_a_random_network_trains_as_planned(front_end: str, block: Any) -> None:
    torch.manual_seed(0)
    plain = Network(block)
    args = torch.randn(2, 3, 8, 8), torch.tensor([0, 1])
    model = copy.deepcopy(plain)
    expected = train(plain, plain, args, steps=2)
    virtual = virtualize(model, **options(front_end, *args))
    try:
        found = train(virtual, model, args, steps=2)
    except InexactTrace:
        reject()  # a layout that PyTorch's trace gets wrong is refused, never computed otherwise
    assert_same(expected, found)
    assert_measured_as_simulated(virtual)
