"""U-Net (Ronneberger et al., MICCAI 2015) as published: unpadded convolutions, 572x572 in, 388x388 out, two classes.

The skips from the way down wait for the way up: the longest-lived feature maps of any network here are also its
largest. The loss is the plain cross entropy per pixel, without the paper's weight map.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from vdnn.errors import InvalidInput
from vdnn.models.conv_blocks import conv_relu, he_initialize
from vdnn.models.losses import cross_entropy
from vdnn.models.samples import Images
from vdnn.models.spec import ModelSpec, Toy

DEPTH = 4  # poolings on the way down
MARGIN = 184  # pixels that the unpadded convolutions of all levels take off: 572 - 388
SMALLEST_IMAGE = 188  # 4 pixels are left at the bottom and at the output
STEP = 2**DEPTH  # legal sizes lie this far apart: every pool has to halve without a remainder


class UNet(nn.Module):
    """`width` channels at the top, twice as many after every pool."""

    def __init__(self, *, width: int = 64, channels: int = 1, num_classes: int = 2) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(DEPTH + 1)]
        inputs = [channels, *widths[:-1]]
        self.down = nn.ModuleList(two_convolutions(a, b) for a, b in zip(inputs, widths, strict=True))
        self.pool = nn.MaxPool2d(2, 2)
        self.dropout = nn.Dropout(0.5)  # the paper's, at the end of the way down
        self.grow = nn.ModuleList(nn.ConvTranspose2d(2 * b, b, 2, 2) for b in reversed(widths[:-1]))
        self.up = nn.ModuleList(two_convolutions(2 * b, b) for b in reversed(widths[:-1]))
        self.head = nn.Conv2d(width, num_classes, 1)
        he_initialize(self)

    def forward(self, images: Tensor) -> Tensor:
        skips = [self.down[0](images)]
        for convolutions in self.down[1:]:
            skips.append(convolutions(self.pool(skips[-1])))
        x = self.dropout(skips.pop())
        for grow, convolutions in zip(self.grow, self.up, strict=True):
            x = grow(x)
            x = convolutions(torch.cat([center_crop(skips.pop(), x.shape[-1]), x], dim=1))
        return self.head(x)


def two_convolutions(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(conv_relu(inputs, outputs, 3), conv_relu(outputs, outputs, 3))


def center_crop(x: Tensor, size: int) -> Tensor:
    edge = (x.shape[-1] - size) // 2
    return x[..., edge : edge + size, edge : edge + size]


@dataclass(frozen=True)
class Tiles(Images):
    """Images, and a class for every pixel that survives the unpadded convolutions."""

    def __call__(self, batch: int) -> tuple[Tensor, ...]:
        size = self.size - MARGIN
        return self.images(batch), torch.randint(self.num_classes, (batch, size, size))

    def at(self, name: str, size: int) -> Images:
        resized = super().at(name, size)
        below = size - (size - SMALLEST_IMAGE) % STEP
        if below != size:
            raise InvalidInput(
                f"{name} halves its images {DEPTH} times: {size} does not work, {below} and {below + STEP} do."
            )
        return resized


SPECS = (
    ModelSpec(
        name="unet",
        title="U-Net",
        source="Ronneberger et al. 2015, one channel in and two classes out; parameters from its figure 1",
        num_parameters=31_030_658,
        build=UNet,
        sample=Tiles(572, num_classes=2, smallest=SMALLEST_IMAGE, channels=1),
        loss=cross_entropy,
        toy=Toy(partial(UNet, width=4), Tiles(SMALLEST_IMAGE, 2, SMALLEST_IMAGE, channels=1)),
    ),
)
