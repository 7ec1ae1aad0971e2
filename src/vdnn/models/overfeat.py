"""OverFeat, the fast model (Sermanet et al., ICLR 2014), as vDNN ran it: 231x231 images, a second layer unpadded."""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn

from vdnn.models.conv_blocks import conv_relu, dropout_head, he_initialize
from vdnn.models.losses import cross_entropy
from vdnn.models.samples import Images
from vdnn.models.spec import ModelSpec, Toy

SMALLEST_IMAGE = 71  # 71 -> 16 -> 8 -> 4 -> 2 -> 1 through the convolutions without padding and the three pools


class OverFeat(nn.Module):
    """`width` is the first layer's number of channels, 96 in the paper; the others keep their ratios to it."""

    def __init__(self, *, width: int = 96, hidden: tuple[int, int] = (3072, 4096), num_classes: int = 1000) -> None:
        super().__init__()
        c1, c2, c3, c4 = width, width * 8 // 3, width * 16 // 3, width * 32 // 3
        self.features = nn.Sequential(
            conv_relu(3, c1, 11, stride=4),
            nn.MaxPool2d(2, 2),
            conv_relu(c1, c2, 5),
            nn.MaxPool2d(2, 2),
            conv_relu(c2, c3, 3, padding=1),
            conv_relu(c3, c4, 3, padding=1),
            conv_relu(c4, c4, 3, padding=1),
            nn.MaxPool2d(2, 2),
            nn.AdaptiveAvgPool2d((6, 6)),  # changes nothing at 231; lets other sizes through
        )
        self.classifier = dropout_head(c4 * 36, *hidden, num_classes)
        he_initialize(self)

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.features(images))


SPECS = (
    ModelSpec(
        name="overfeat",
        title="OverFeat, fast model",
        source="Sermanet et al. 2014; parameters derived from the layer shapes, the paper rounds them to 145 million",
        num_parameters=145_920_872,
        build=OverFeat,
        sample=Images(231, smallest=SMALLEST_IMAGE),
        loss=cross_entropy,
        toy=Toy(partial(OverFeat, width=6, hidden=(24, 32), num_classes=10), Images(103, 10, SMALLEST_IMAGE)),
    ),
)
