"""The blocks that several convolutional families share.

The one idea: ReLU works in place wherever its input is the fresh output of a convolution or a normalization, as the
originals do. Backward of neither needs that value, so nothing is lost, and a planner that counts storages sees the
network as it was published.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

Size = int | tuple[int, int]


def conv_relu(inputs: int, outputs: int, kernel: Size, *, stride: int = 1, padding: Size = 0) -> nn.Sequential:
    """Convolution with bias and ReLU: the networks before batch normalization."""
    return nn.Sequential(nn.Conv2d(inputs, outputs, kernel, stride, padding), nn.ReLU(inplace=True))


def conv_norm_relu(inputs: int, outputs: int, kernel: Size, *, stride: int = 1, padding: Size = 0) -> nn.Sequential:
    """Convolution, batch normalization and ReLU, as in Inception v3 and v4."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False),
        nn.BatchNorm2d(outputs, eps=1e-3),  # eps as in TF-Slim's Inception, where the published weights come from
        nn.ReLU(inplace=True),
    )


def dropout_head(inputs: int, first: int, second: int, num_classes: int) -> nn.Sequential:
    """Three linear layers with dropout before the first two: AlexNet's head and OverFeat's."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(inputs, first),
        nn.ReLU(inplace=True),
        nn.Dropout(0.5),
        nn.Linear(first, second),
        nn.ReLU(inplace=True),
        nn.Linear(second, num_classes),
    )


class Parallel(nn.Module):
    """Branches that read the same input; their outputs are concatenated along the channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], dim=1)


def he_initialize(network: nn.Module) -> None:
    """Weights by He et al. (2015), biases zero: the signal reaches the end of a network of hundreds of ReLU layers."""
    for module in network.modules():
        if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
