"""The vocabulary of Inception v3 and v4: chains of normalized convolutions, forks, pools.

The one idea: the files that describe the networks write the papers' channel counts, and the kit divides them, so that
the toy network for tests is the published description read at another scale.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from vdnn.models.conv_blocks import Parallel, Size, conv_norm_relu

ACROSS, DOWN = (1, 7), (7, 1)
SHORT_ACROSS, SHORT_DOWN = (1, 3), (3, 1)


@dataclass(frozen=True)
class InceptionKit:
    """Makes blocks whose channels are the given ones over `divisor`."""

    divisor: int = 1

    def channels(self, published: int) -> int:
        assert published % self.divisor == 0, f"{published} channels cannot be divided by {self.divisor}"
        return published // self.divisor

    def chain(self, inputs: int, *layers: tuple[int, Size]) -> nn.Sequential:
        """Convolutions one after the other, each `(outputs, kernel)` and padded so that the image keeps its size."""
        chain = nn.Sequential()
        for outputs, kernel in layers:
            padding = kernel // 2 if isinstance(kernel, int) else (kernel[0] // 2, kernel[1] // 2)
            chain.append(conv_norm_relu(self.channels(inputs), self.channels(outputs), kernel, padding=padding))
            inputs = outputs
        return chain

    def unpadded(self, inputs: int, outputs: int, kernel: int = 3, *, stride: int = 1) -> nn.Sequential:
        return conv_norm_relu(self.channels(inputs), self.channels(outputs), kernel, stride=stride)

    def fork(self, inputs: int, outputs: int) -> Parallel:
        """A 1x3 and a 3x1 convolution side by side: how the 8x8 modules widen."""
        return Parallel(self.chain(inputs, (outputs, SHORT_ACROSS)), self.chain(inputs, (outputs, SHORT_DOWN)))

    def pooled(self, inputs: int, outputs: int) -> nn.Sequential:
        """The pool branch: the mean of the 3x3 neighbourhood, then 1x1."""
        return nn.Sequential(nn.AvgPool2d(3, 1, 1, count_include_pad=False), self.chain(inputs, (outputs, 1)))

    def stem(self) -> nn.Sequential:
        """The first three convolutions, which v3 and v4 share: 299 -> 149 -> 147 -> 147."""
        first = conv_norm_relu(3, self.channels(32), 3, stride=2)
        return nn.Sequential(first, self.unpadded(32, 32), self.chain(32, (64, 3)))

    def head(self, inputs: int, num_classes: int, dropout: float) -> nn.Sequential:
        linear = nn.Linear(self.channels(inputs), num_classes)
        return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(dropout), linear)
