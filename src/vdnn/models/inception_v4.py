"""Inception-v4 (Szegedy et al., AAAI 2017): SuperNeurons' widest network, 4 + 7 + 3 modules after a branching stem."""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn

from vdnn.models.conv_blocks import Parallel, he_initialize
from vdnn.models.inception_kit import ACROSS, DOWN, SHORT_ACROSS, SHORT_DOWN, InceptionKit
from vdnn.models.losses import cross_entropy
from vdnn.models.samples import Images
from vdnn.models.spec import ModelSpec, Toy

SMALLEST_IMAGE = 107  # leaves 2x2: batch normalization needs more than one value per channel even for one image


class InceptionV4(nn.Module):
    """`repeats` modules at 35x35, 17x17 and 8x8."""

    def __init__(self, *, repeats: tuple[int, int, int] = (4, 7, 3), divisor: int = 1, num_classes: int = 1000) -> None:
        super().__init__()
        kit = InceptionKit(divisor)
        self.stem = nn.Sequential(kit.stem(), *branching_stem(kit))
        self.body = nn.Sequential(
            *(grid_35(kit) for _ in range(repeats[0])),
            to_grid_17(kit),
            *(grid_17(kit) for _ in range(repeats[1])),
            to_grid_8(kit),
            *(grid_8(kit) for _ in range(repeats[2])),
        )
        self.head = kit.head(1536, num_classes, dropout=0.2)  # the paper keeps 0.8
        he_initialize(self)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.body(self.stem(images)))


def branching_stem(kit: InceptionKit) -> tuple[Parallel, Parallel, Parallel]:
    return (
        Parallel(nn.MaxPool2d(3, 2), kit.unpadded(64, 96, stride=2)),
        Parallel(
            nn.Sequential(kit.chain(160, (64, 1)), kit.unpadded(64, 96)),
            nn.Sequential(kit.chain(160, (64, 1), (64, ACROSS), (64, DOWN)), kit.unpadded(64, 96)),
        ),
        Parallel(kit.unpadded(192, 192, stride=2), nn.MaxPool2d(3, 2)),
    )


def grid_35(kit: InceptionKit) -> Parallel:
    return Parallel(
        kit.chain(384, (96, 1)),
        kit.chain(384, (64, 1), (96, 3)),
        kit.chain(384, (64, 1), (96, 3), (96, 3)),
        kit.pooled(384, 96),
    )


def to_grid_17(kit: InceptionKit) -> Parallel:
    return Parallel(
        kit.unpadded(384, 384, stride=2),
        nn.Sequential(kit.chain(384, (192, 1), (224, 3)), kit.unpadded(224, 256, stride=2)),
        nn.MaxPool2d(3, 2),
    )


def grid_17(kit: InceptionKit) -> Parallel:
    return Parallel(
        kit.chain(1024, (384, 1)),
        kit.chain(1024, (192, 1), (224, ACROSS), (256, DOWN)),
        kit.chain(1024, (192, 1), (192, DOWN), (224, ACROSS), (224, DOWN), (256, ACROSS)),
        kit.pooled(1024, 128),
    )


def to_grid_8(kit: InceptionKit) -> Parallel:
    return Parallel(
        nn.Sequential(kit.chain(1024, (192, 1)), kit.unpadded(192, 192, stride=2)),
        nn.Sequential(kit.chain(1024, (256, 1), (256, ACROSS), (320, DOWN)), kit.unpadded(320, 320, stride=2)),
        nn.MaxPool2d(3, 2),
    )


def grid_8(kit: InceptionKit) -> Parallel:
    return Parallel(
        kit.chain(1536, (256, 1)),
        nn.Sequential(kit.chain(1536, (384, 1)), kit.fork(384, 256)),
        nn.Sequential(kit.chain(1536, (384, 1), (448, SHORT_DOWN), (512, SHORT_ACROSS)), kit.fork(512, 256)),
        kit.pooled(1536, 256),
    )


SPECS = (
    ModelSpec(
        name="inception-v4",
        title="Inception-v4",
        source="Szegedy et al. 2017; parameters as in the ports of its published weights (Cadene, timm)",
        num_parameters=42_679_816,
        build=InceptionV4,
        sample=Images(299, smallest=SMALLEST_IMAGE),
        loss=cross_entropy,
        toy=Toy(
            partial(InceptionV4, repeats=(1, 1, 1), divisor=16, num_classes=10),
            Images(SMALLEST_IMAGE, 10, SMALLEST_IMAGE),
        ),
    ),
)
