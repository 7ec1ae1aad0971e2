"""VGG-16 (Simonyan & Zisserman, ICLR 2015, configuration D) and vDNN's deep variants VGG-116 to VGG-416.

The variants put 20, 40, 60 or 80 more convolutions into each of the five groups, as vDNN did: networks that nobody
would train for their accuracy, and whose feature maps pass 60 GB at batch 32, which is what they are for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from torch import Tensor, nn

from vdnn.models.conv_blocks import conv_relu, he_initialize
from vdnn.models.losses import cross_entropy
from vdnn.models.samples import Images
from vdnn.models.spec import ModelSpec, Toy

CONVOLUTIONS = (2, 2, 3, 3, 3)  # per group, configuration D
CHANNELS = (1, 2, 4, 8, 8)  # of each group, times 64
SMALLEST_IMAGE = 32  # five pools halve it to one pixel
VGG16_NUM_PARAMETERS = 138_357_544
PARAMETERS_PER_EXTRA = (
    5_494_208  # one more convolution in every group: the sum of 9 c^2 + c over c = 64, 128, 256, 512, 512
)


class VGG(nn.Module):
    """`convolutions[g]` 3x3 convolutions in group g, a pool after each group, then three fully connected layers."""

    def __init__(
        self, convolutions: Sequence[int], *, width: int = 64, hidden: int = 4096, num_classes: int = 1000
    ) -> None:
        super().__init__()
        self.features = nn.Sequential(*groups(convolutions, width))
        self.pool = nn.AdaptiveAvgPool2d((7, 7))  # changes nothing at 224; lets other sizes through
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Linear(width * CHANNELS[-1] * 49, hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(0.5),
            nn.Linear(hidden, hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(0.5),
            nn.Linear(hidden, num_classes),
        )
        he_initialize(self)

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.pool(self.features(images)))


def groups(convolutions: Sequence[int], width: int) -> Iterator[nn.Module]:
    inputs = 3
    for count, multiple in zip(convolutions, CHANNELS, strict=True):
        for _ in range(count):
            yield conv_relu(inputs, width * multiple, 3, padding=1)
            inputs = width * multiple
        yield nn.MaxPool2d(2, 2)


def vgg(extra: int) -> ModelSpec:
    """VGG-16 with `extra` more convolutions in every group."""
    depth = 16 + 5 * extra
    convolutions = tuple(count + extra for count in CONVOLUTIONS)
    few = tuple(count + extra // 20 for count in CONVOLUTIONS)
    variant = (
        f"; +{extra} convolutions per group as in vDNN, parameters derived from that" if extra else ", torchvision"
    )
    return ModelSpec(
        name=f"vgg{depth}",
        title=f"VGG-{depth}",
        source=f"Simonyan & Zisserman 2015, configuration D{variant}",
        num_parameters=VGG16_NUM_PARAMETERS + extra * PARAMETERS_PER_EXTRA,
        build=partial(VGG, convolutions),
        sample=Images(224, smallest=SMALLEST_IMAGE),
        loss=cross_entropy,
        toy=Toy(partial(VGG, few, width=8, hidden=32, num_classes=10), Images(32, 10, SMALLEST_IMAGE)),
    )


SPECS = tuple(vgg(extra) for extra in (0, 20, 40, 60, 80))
