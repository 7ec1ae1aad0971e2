"""Bottleneck ResNets (He et al., CVPR 2016): 50, 101, 152 layers, and any four stage counts.

SuperNeurons made them deep by stage counts: (6, 32, 788, 6) is its ResNet2500, 2498 layers of convolution and matrix
product. The stride sits in the 3x3 convolution, as in torchvision and most of today's code; the parameters are the
same either way.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch import Tensor, nn

from vdnn.models.conv_blocks import he_initialize
from vdnn.models.losses import cross_entropy
from vdnn.models.samples import Images
from vdnn.models.spec import ModelSpec, Toy

EXPANSION = 4  # a block's output channels over its inner ones
SMALLEST_IMAGE = 64  # leaves 2x2: batch normalization needs more than one value per channel even for one image
PUBLISHED = {  # torchvision's counts
    "resnet50": ((3, 4, 6, 3), 25_557_032),
    "resnet101": ((3, 4, 23, 3), 44_549_160),
    "resnet152": ((3, 8, 36, 3), 60_192_808),
}


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 with a shortcut around them, which is a 1x1 convolution where shapes change."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * EXPANSION
        self.conv1, self.norm1 = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.norm3 = nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.norm1(self.conv1(x)))
        out = self.relu(self.norm2(self.conv2(out)))
        out = self.norm3(self.conv3(out))
        out += self.shortcut(x)
        return self.relu(out)


class ResNet(nn.Module):
    """`counts[s]` bottlenecks in stage s; every stage after the first halves the image and doubles the channels."""

    def __init__(self, counts: Sequence[int], *, width: int = 64, num_classes: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, 3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )
        self.stages = nn.Sequential()
        inputs = width
        for stage, count in enumerate(counts):
            inner = width * 2**stage
            for block in range(count):
                self.stages.append(Bottleneck(inputs, inner, stride=2 if stage > 0 and block == 0 else 1))
                inputs = inner * EXPANSION
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, num_classes))
        he_initialize(self)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.stages(self.stem(images)))


def num_layers(counts: Sequence[int]) -> int:
    """Three convolutions per block, the first convolution and the classifier: how ResNets are named."""
    return 3 * sum(counts) + 2


def derived_num_parameters(counts: Sequence[int]) -> int:
    """The parameters of a bottleneck ResNet from its shapes alone. A normalization has two per channel."""
    total, inputs = (3 * 49 * 64 + 2 * 64) + (2048 * 1000 + 1000), 64
    for stage, count in enumerate(counts):
        inner, outputs = 64 * 2**stage, 256 * 2**stage
        later = outputs * inner + 9 * inner**2 + inner * outputs + 2 * (2 * inner + outputs)
        shortcut = inputs * outputs + 2 * outputs
        total += count * later + (inputs - outputs) * inner + shortcut  # the first block reads the stage before
        inputs = outputs
    return total


def resnet(counts: Sequence[int], *, name: str | None = None, num_parameters: int | None = None) -> ModelSpec:
    """Any four stage counts, each at least 1. Without a name it is called after them, as in `resnet-6-32-788-6`."""
    counts = tuple(counts)
    few = tuple(min(count, 2) for count in counts)
    return ModelSpec(
        name=name or "resnet-" + "-".join(map(str, counts)),
        title=f"ResNet-{num_layers(counts)}, bottlenecks {counts}",
        source="He et al. 2016; parameters "
        + ("as in torchvision" if num_parameters else "derived from the layer shapes"),
        num_parameters=num_parameters or derived_num_parameters(counts),
        build=partial(ResNet, counts),
        sample=Images(224, smallest=SMALLEST_IMAGE),
        loss=cross_entropy,
        toy=Toy(partial(ResNet, few, width=8, num_classes=10), Images(64, 10, SMALLEST_IMAGE)),
    )


SPECS = tuple(resnet(counts, name=name, num_parameters=size) for name, (counts, size) in PUBLISHED.items())
