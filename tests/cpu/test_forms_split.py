"""A convolution's backward in two calls has the bits of the one call, and lets go of its input in between."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from equivalence import assert_measured_as_simulated, assert_same, train
from formed import graphs_of_forms, in_form, least_nbytes
from nets import ConvNet, images
from torch import Tensor, nn

pytestmark = pytest.mark.any_device

aten = torch.ops.aten

SPLIT = "convolution backwards split"

LAYERS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "3x3": (nn.Conv2d(16, 24, 3, padding=1), (4, 16, 14, 14)),
    "3x3 on one image": (nn.Conv2d(16, 24, 3, padding=1), (1, 16, 14, 14)),
    "first layer": (nn.Conv2d(3, 32, 3, padding=1), (2, 3, 40, 40)),
    "1x1": (nn.Conv2d(32, 16, 1), (3, 32, 9, 9)),
    "strided": (nn.Conv2d(8, 16, 5, stride=2, padding=2), (2, 8, 17, 17)),
    "dilated": (nn.Conv2d(8, 8, 3, padding=2, dilation=2), (2, 8, 12, 12)),
    "groups": (nn.Conv2d(16, 16, 3, groups=4), (3, 16, 10, 10)),
    "depthwise": (nn.Conv2d(16, 16, 3, padding=1, groups=16), (3, 16, 10, 10)),
    "without bias": (nn.Conv2d(8, 8, 3, bias=False), (2, 8, 10, 10)),
    "transposed": (nn.ConvTranspose2d(16, 8, 2, stride=2), (2, 16, 7, 7)),
    "one dim": (nn.Conv1d(8, 12, 3, padding=1), (3, 8, 33)),
    "three dims": (nn.Conv3d(4, 6, 3, padding=1), (2, 4, 5, 6, 7)),
}


def arguments(layer: Any, x: Tensor) -> list[Any]:
    """What `convolution_backward` gets for a layer and an input, without its mask."""
    gradient = torch.randn_like(layer(x).detach())
    sizes = None if layer.bias is None else list(layer.bias.shape)
    geometry = [list(layer.stride), list(layer.padding), list(layer.dilation)]
    kind = [layer.transposed, list(layer.output_padding), layer.groups]
    return [gradient, x, layer.weight.detach(), sizes, *geometry, *kind]


@pytest.mark.parametrize(
    "memory_format", [torch.contiguous_format, torch.channels_last], ids=["default", "channels last"]
)
@pytest.mark.parametrize("kind", LAYERS)
def test_two_calls_have_the_bits_of_one(kind: str, memory_format: torch.memory_format) -> None:
    layer, shape = copy.deepcopy(LAYERS[kind])
    torch.manual_seed(0)
    x = torch.randn(shape)
    if len(shape) == 4:
        layer, x = layer.to(memory_format=memory_format), x.to(memory_format=memory_format)  # type: ignore[call-overload]
    args, has_bias = arguments(layer, x), layer.bias is not None
    together = aten.convolution_backward(*args, [True, True, has_bias])
    of_weights = aten.convolution_backward(*args, [False, True, has_bias])
    of_input = aten.convolution_backward(*args, [True, False, False])
    apart = [of_input[0], of_weights[1], of_weights[2]]
    for ours, theirs in zip(apart[: 2 + has_bias], together, strict=False):
        assert torch.equal(ours, theirs)
        assert ours.stride() == theirs.stride()


def step(model: nn.Module) -> Any:
    return lambda x: model(x).square().mean()


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), ConvNetTail())


class ConvNetTail(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x[..., 1:], x[..., :-1]], dim=1).relu()


@pytest.mark.parametrize("model", [network(), ConvNet()], ids=["plain", "with BatchNorm"])
@pytest.mark.parametrize("strategy", ["keep-all", "offload"])
def test_a_step_in_the_split_form_has_the_bits_of_the_plain_one(
    model: nn.Module, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, ours = copy.deepcopy(model), copy.deepcopy(model)
    model_with_gradient = nn.Sequential(nn.Conv2d(3, 3, 1), ours)
    reference = nn.Sequential(copy.deepcopy(model_with_gradient[0]), plain)
    virtual = in_form(monkeypatch, SPLIT, step(model_with_gradient), (images(),), strategy=strategy)
    expected = train(step(reference), reference, (images(),))
    assert_same(expected, train(virtual, model_with_gradient, (images(),)))
    assert_measured_as_simulated(virtual)


def test_no_call_makes_gradients_of_both_input_and_weights() -> None:
    graph = graphs_of_forms(step(network()), (images(),), exact=True)[SPLIT]
    backwards = [op for op in graph.ops if op.target == "aten.convolution_backward.default"]
    assert [len(op.writes) for op in backwards] == [2, 1, 2]  # weight and bias, input, and no input of the first layer


def test_the_split_form_needs_less_at_least() -> None:
    convolutions = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.AvgPool2d(4))
    graphs = graphs_of_forms(step(convolutions), (images(64),), exact=True)
    assert least_nbytes(graphs[SPLIT]) < least_nbytes(graphs["traced"])


def test_it_is_the_only_form_that_is_exact() -> None:
    assert list(graphs_of_forms(step(network()), (images(),), exact=True)) == ["traced", SPLIT]


def test_a_network_without_convolutions_has_no_exact_form() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    assert list(graphs_of_forms(step(model), (torch.randn(4, 8),), exact=True)) == ["traced"]
