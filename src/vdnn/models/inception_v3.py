"""Inception-v3 (Szegedy et al., CVPR 2016), with its side classifier as it is trained. Pal et al. split this network.

The side head reads the last 17x17 map through a 5x5 pool and a 5x5 convolution; 299 is exactly the smallest image for
which that works.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn

from vdnn.models.conv_blocks import Parallel, he_initialize
from vdnn.models.inception_kit import ACROSS, DOWN, InceptionKit
from vdnn.models.losses import auxiliary_cross_entropy
from vdnn.models.samples import Images
from vdnn.models.spec import ModelSpec, Toy

IMAGE = 299


class InceptionV3(nn.Module):
    """Returns the logits, and with `auxiliary` in training mode also those of the side classifier."""

    def __init__(self, *, divisor: int = 1, num_classes: int = 1000, auxiliary: bool = True) -> None:
        super().__init__()
        kit = InceptionKit(divisor)
        self.stem = nn.Sequential(
            kit.stem(), nn.MaxPool2d(3, 2), kit.unpadded(64, 80, 1), kit.unpadded(80, 192), nn.MaxPool2d(3, 2)
        )
        self.body = nn.Sequential(
            grid_35(kit, 192, 32),
            grid_35(kit, 256, 64),
            grid_35(kit, 288, 64),
            to_grid_17(kit),
            *(grid_17(kit, inner) for inner in (128, 160, 160, 192)),
        )
        self.auxiliary = side_classifier(kit, num_classes) if auxiliary else None
        self.tail = nn.Sequential(to_grid_8(kit), grid_8(kit, 1280), grid_8(kit, 2048))
        self.head = kit.head(2048, num_classes, dropout=0.5)
        he_initialize(self)

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        x = self.body(self.stem(images))
        logits = self.head(self.tail(x))
        return (logits, self.auxiliary(x)) if self.auxiliary is not None and self.training else logits


def grid_35(kit: InceptionKit, inputs: int, pooled: int) -> Parallel:
    return Parallel(
        kit.chain(inputs, (64, 1)),
        kit.chain(inputs, (48, 1), (64, 5)),
        kit.chain(inputs, (64, 1), (96, 3), (96, 3)),
        kit.pooled(inputs, pooled),
    )


def to_grid_17(kit: InceptionKit) -> Parallel:
    return Parallel(
        kit.unpadded(288, 384, stride=2),
        nn.Sequential(kit.chain(288, (64, 1), (96, 3)), kit.unpadded(96, 96, stride=2)),
        nn.MaxPool2d(3, 2),
    )


def grid_17(kit: InceptionKit, inner: int) -> Parallel:
    """7x7 convolutions factored into 1x7 and 7x1."""
    return Parallel(
        kit.chain(768, (192, 1)),
        kit.chain(768, (inner, 1), (inner, ACROSS), (192, DOWN)),
        kit.chain(768, (inner, 1), (inner, DOWN), (inner, ACROSS), (inner, DOWN), (192, ACROSS)),
        kit.pooled(768, 192),
    )


def to_grid_8(kit: InceptionKit) -> Parallel:
    return Parallel(
        nn.Sequential(kit.chain(768, (192, 1)), kit.unpadded(192, 320, stride=2)),
        nn.Sequential(kit.chain(768, (192, 1), (192, ACROSS), (192, DOWN)), kit.unpadded(192, 192, stride=2)),
        nn.MaxPool2d(3, 2),
    )


def grid_8(kit: InceptionKit, inputs: int) -> Parallel:
    return Parallel(
        kit.chain(inputs, (320, 1)),
        nn.Sequential(kit.chain(inputs, (384, 1)), kit.fork(384, 384)),
        nn.Sequential(kit.chain(inputs, (448, 1), (384, 3)), kit.fork(384, 384)),
        kit.pooled(inputs, 192),
    )


def side_classifier(kit: InceptionKit, num_classes: int) -> nn.Sequential:
    return nn.Sequential(
        nn.AvgPool2d(5, 3), kit.chain(768, (128, 1)), kit.unpadded(128, 768, 5), kit.head(768, num_classes, dropout=0.0)
    )


SPECS = (
    ModelSpec(
        name="inception-v3",
        title="Inception-v3 with its side classifier",
        source="Szegedy et al. 2016, torchvision (23,834,568 without the side classifier)",
        num_parameters=27_161_264,
        build=InceptionV3,
        sample=Images(IMAGE, smallest=IMAGE),
        loss=auxiliary_cross_entropy,
        smallest_batch=2,  # the side classifier normalizes a single pixel
        toy=Toy(partial(InceptionV3, divisor=16, num_classes=10), Images(IMAGE, 10, IMAGE)),
    ),
)
