"""Small networks that the tests of this folder train. Each is a situation with a name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor, nn

from where import seeded

EITHER_FRONT_END = pytest.mark.parametrize("front_end", ["just in time", "ahead of time"])


PYTORCH_MAY_WARN = pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf",
    "ignore:.*script_method. is deprecated",
    "ignore:.*torch.autograd.function.Function.* should not be instantiated",
)
"""Dynamo looks at `.grad` of whatever enters a graph, imports deprecated parts of PyTorch when it meets an optimizer,
and instantiates autograd functions. It hides the warnings, but not from a test run that turns them into errors."""


def options(front_end: str, *sample: Any) -> dict[str, Any]:
    """The arguments of `virtualize` that choose a front end."""
    return {"sample": sample} if front_end == "ahead of time" else {}


class ConvNet(nn.Module):
    """Convolution, BatchNorm, in-place ReLU, dropout, linear: statistics, masks and in-place writes in five layers."""

    def __init__(self, momentum: float | None = 0.1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8, momentum=momentum)
        self.dropout = nn.Dropout(0.3)
        self.linear = nn.Linear(8, 4)

    def features(self, images: Tensor) -> Tensor:
        return F.relu(self.norm(self.conv(images)), inplace=True)

    def forward(self, images: Tensor) -> Tensor:
        return self.linear(self.dropout(self.features(images)).mean((2, 3)))


class LooksAtValues(ConvNet):
    """Breaks capture in the middle: Python asks a tensor for its value."""

    def forward(self, images: Tensor) -> Tensor:
        features = self.features(images)
        if features.sum().item() > 1e9:
            return features
        return self.linear(self.dropout(features).mean((2, 3)))


class Using(nn.Module):
    """A module made of a function and the parameters, buffers and layers that it uses: `function(module, *args)`."""

    def __init__(self, function: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            if isinstance(part, Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self, *args, **kwargs)


def images(batch: int = 4) -> Tensor:
    return torch.randn(batch, 3, 8, 8, generator=seeded(batch))


def rows(batch: int = 3) -> Tensor:
    return torch.randn(batch, 4, generator=seeded(batch))


def backward(model: Any, *args: Any) -> None:
    model(*args).sum().backward()


def backward_of_each(output: Any) -> None:
    """From every output that has a gradient, with weights that no two elements share."""
    leaves = [leaf for leaf in torch.utils._pytree.tree_leaves(output) if isinstance(leaf, Tensor)]
    losses = [(_real(t) * _weights(t)).sum() for t in leaves if t.requires_grad]
    torch.stack(losses).sum().backward()


def _real(tensor: Tensor) -> Tensor:
    return tensor.abs() if tensor.is_complex() else tensor


def _weights(tensor: Tensor) -> Tensor:
    return torch.linspace(0.5, 1.5, max(tensor.numel(), 1))[: tensor.numel()].view(tensor.shape)
