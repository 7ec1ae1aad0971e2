"""Network in Network (Lin et al., ICLR 2014), the ImageNet model that Gist measured: 1x1 after each convolution.

At 227x227 the pools divide without a remainder (55, 27, 13, 6), so Caffe's rounding and PyTorch's give the same
network.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn

from vdnn.models.conv_blocks import conv_relu, he_initialize
from vdnn.models.losses import cross_entropy
from vdnn.models.samples import Images
from vdnn.models.spec import ModelSpec, Toy

SMALLEST_IMAGE = 67  # 67 -> 15 -> 7 -> 3 -> 1, as AlexNet's


class NetworkInNetwork(nn.Module):
    """`widths` are the channels of the four convolutions."""

    def __init__(self, *, widths: tuple[int, int, int, int] = (96, 256, 384, 1024), num_classes: int = 1000) -> None:
        super().__init__()
        c1, c2, c3, c4 = widths
        self.features = nn.Sequential(
            conv_relu(3, c1, 11, stride=4),
            *perceptron(c1, c1),
            nn.MaxPool2d(3, 2),
            conv_relu(c1, c2, 5, padding=2),
            *perceptron(c2, c2),
            nn.MaxPool2d(3, 2),
            conv_relu(c2, c3, 3, padding=1),
            *perceptron(c3, c3),
            nn.MaxPool2d(3, 2),
            nn.Dropout(0.5),
            conv_relu(c3, c4, 3, padding=1),
            *perceptron(c4, num_classes),
        )
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        he_initialize(self)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(images))


def perceptron(channels: int, outputs: int) -> tuple[nn.Module, nn.Module]:
    """The two 1x1 convolutions that follow every spatial one."""
    return conv_relu(channels, channels, 1), conv_relu(channels, outputs, 1)


SPECS = (
    ModelSpec(
        name="nin",
        title="Network in Network",
        source="Lin et al. 2014, ImageNet model; parameters derived from the layer shapes",
        num_parameters=7_595_176,
        build=NetworkInNetwork,
        sample=Images(227, smallest=SMALLEST_IMAGE),
        loss=cross_entropy,
        toy=Toy(partial(NetworkInNetwork, widths=(8, 12, 16, 24), num_classes=10), Images(99, 10, SMALLEST_IMAGE)),
    ),
)
