"""GoogLeNet, the first Inception (Szegedy et al., CVPR 2015), with the nine modules of the paper's table 1.

As published: biases instead of batch normalization, 5x5 kernels in the fourth branch (torchvision's port has 3x3
there and batch normalization everywhere, hence its other count). Left out: the two side classifiers and, as in
torchvision, local response normalization. Neither changes which feature maps the nine modules make.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn

from vdnn.models.conv_blocks import Parallel, conv_relu, he_initialize
from vdnn.models.losses import cross_entropy
from vdnn.models.samples import Images
from vdnn.models.spec import ModelSpec, Toy
from vdnn.papers.googlenet_table import INCEPTIONS

POOL_BEFORE = ("3a", "4a", "5a")
SMALLEST_IMAGE = 32  # five halvings leave one pixel


class GoogLeNet(nn.Module):
    """All channel counts of the paper, divided by `divisor`."""

    def __init__(self, *, divisor: int = 1, num_classes: int = 1000) -> None:
        super().__init__()
        inputs = 192 // divisor
        self.stem = nn.Sequential(
            conv_relu(3, 64 // divisor, 7, stride=2, padding=3),
            nn.MaxPool2d(3, 2, ceil_mode=True),
            conv_relu(64 // divisor, 64 // divisor, 1),
            conv_relu(64 // divisor, inputs, 3, padding=1),
        )
        self.modules_3a_to_5b = nn.Sequential()
        for name, table in INCEPTIONS.items():
            if name in POOL_BEFORE:
                self.modules_3a_to_5b.append(nn.MaxPool2d(3, 2, ceil_mode=True))
            self.modules_3a_to_5b.append(inception(inputs, *(channels // divisor for channels in table)))
            inputs = sum(table[i] for i in (0, 2, 4, 5)) // divisor
        self.head = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.4), nn.Linear(inputs, num_classes)
        )
        he_initialize(self)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.modules_3a_to_5b(self.stem(images)))


def inception(inputs: int, c1: int, c3_in: int, c3: int, c5_in: int, c5: int, pooled: int) -> Parallel:
    return Parallel(
        conv_relu(inputs, c1, 1),
        nn.Sequential(conv_relu(inputs, c3_in, 1), conv_relu(c3_in, c3, 3, padding=1)),
        nn.Sequential(conv_relu(inputs, c5_in, 1), conv_relu(c5_in, c5, 5, padding=2)),
        nn.Sequential(nn.MaxPool2d(3, 1, padding=1), conv_relu(inputs, pooled, 1)),
    )


SPECS = (
    ModelSpec(
        name="googlenet",
        title="GoogLeNet (Inception v1)",
        source="Szegedy et al. 2015 without side classifiers; parameters derived from the paper's table 1",
        num_parameters=6_998_552,
        build=GoogLeNet,
        sample=Images(224, smallest=SMALLEST_IMAGE),
        loss=cross_entropy,
        toy=Toy(partial(GoogLeNet, divisor=8, num_classes=10), Images(64, 10, SMALLEST_IMAGE)),
    ),
)
