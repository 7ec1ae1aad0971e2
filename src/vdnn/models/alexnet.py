"""AlexNet (Krizhevsky et al., NeurIPS 2012) as the memory papers ran it: one tower without groups, 227x227 images.

Two forms: `alexnet` without local response normalization (vDNN's), `alexnet-lrn` with it after the first two ReLUs
(SuperNeurons').
"""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn

from vdnn.models.conv_blocks import conv_relu, dropout_head, he_initialize
from vdnn.models.losses import cross_entropy
from vdnn.models.samples import Images
from vdnn.models.spec import ModelSpec, Toy

SOURCE = "Krizhevsky et al. 2012, ungrouped; parameters derived from the layer shapes"
NUM_PARAMETERS = 62_378_344  # convolutions 3,747,200 + fully connected 58,631,144; normalization has none
SMALLEST_IMAGE = 67  # 67 -> 15 -> 7 -> 3 -> 1 through the strided convolution and the three pools


class AlexNet(nn.Module):
    """`width` is the first layer's number of channels, 96 in the paper; the others keep their ratios to it."""

    def __init__(self, *, width: int = 96, hidden: int = 4096, num_classes: int = 1000, lrn: bool = False) -> None:
        super().__init__()
        c1, c2, c3, c5 = width, width * 8 // 3, width * 4, width * 8 // 3
        self.features = nn.Sequential(
            conv_relu(3, c1, 11, stride=4),
            *([local_response_norm()] if lrn else []),
            nn.MaxPool2d(3, 2),
            conv_relu(c1, c2, 5, padding=2),
            *([local_response_norm()] if lrn else []),
            nn.MaxPool2d(3, 2),
            conv_relu(c2, c3, 3, padding=1),
            conv_relu(c3, c3, 3, padding=1),
            conv_relu(c3, c5, 3, padding=1),
            nn.MaxPool2d(3, 2),
            nn.AdaptiveAvgPool2d((6, 6)),  # changes nothing at 227; lets other sizes through
        )
        self.classifier = dropout_head(c5 * 36, hidden, hidden, num_classes)
        he_initialize(self)

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.features(images))


def local_response_norm() -> nn.Module:
    """Section 3.3 of the paper: n=5, k=2, alpha=1e-4, beta=0.75. PyTorch divides alpha by n, the paper does not."""
    return nn.LocalResponseNorm(5, alpha=5e-4, beta=0.75, k=2.0)


def alexnet(name: str, title: str, *, lrn: bool) -> ModelSpec:
    return ModelSpec(
        name=name,
        title=title,
        source=SOURCE,
        num_parameters=NUM_PARAMETERS,
        build=partial(AlexNet, lrn=lrn),
        sample=Images(227, smallest=SMALLEST_IMAGE),
        loss=cross_entropy,
        toy=Toy(partial(AlexNet, width=12, hidden=32, num_classes=10, lrn=lrn), Images(99, 10, SMALLEST_IMAGE)),
    )


SPECS = (
    alexnet("alexnet", "AlexNet without local response normalization", lrn=False),
    alexnet("alexnet-lrn", "AlexNet with local response normalization", lrn=True),
)
