"""Table 1 of Szegedy et al., "Going Deeper with Convolutions", CVPR 2015: the widths of GoogLeNet's nine modules.

The zoo builds its network from it, and so does the layer-by-layer GoogLeNet of the vDNN paper.
"""

from __future__ import annotations

Widths = tuple[int, int, int, int, int, int]
"""Outputs of the 1x1; of the 3x3's reduction and the 3x3; of the 5x5's reduction and the 5x5; of the 1x1 after the
pool."""

INCEPTIONS: dict[str, Widths] = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}
