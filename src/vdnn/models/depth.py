"""Families of networks that can be made deeper, one number at a time.

Enters: the name of a network. Leaves: a `Depth`, which makes the same network with `n` of what makes it deep. ResNets
grow in their third stage, as SuperNeurons grew them (PPoPP 2018: 6, 32, n, 6 bottlenecks); VGGs by a convolution in
each of the five groups at a time, as vDNN's VGG-116 to VGG-416 (MICRO 2016) grew by twenty.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from vdnn.errors import InvalidInput
from vdnn.models import resnet, vgg
from vdnn.models.spec import ModelSpec

_VGG = re.compile(r"vgg(\d+)")
_STAGE_COUNTS = re.compile(r"resnet-(\d+)-(\d+)-(\d+)-(\d+)")


@dataclass(frozen=True)
class Depth:
    """`at(n)` is the network of size n, `layers(n)` its number of weighted layers, by which papers name it."""

    what: str
    smallest: int
    at: Callable[[int], ModelSpec]
    layers: Callable[[int], int]


def depth_of(name: str) -> Depth:
    """How the named network is made deeper; InvalidInput for one that is not."""
    counts = _stage_counts(name)
    if counts is not None:
        first, second, _, fourth = counts
        return Depth(
            f"bottlenecks in stage 3 of resnet-{first}-{second}-n-{fourth}",
            1,
            lambda n: resnet.resnet((first, second, n, fourth)),
            lambda n: resnet.num_layers((first, second, n, fourth)),
        )
    if _VGG.fullmatch(name):
        return Depth("convolutions more than VGG-16 in each of the five groups", 0, vgg.vgg, lambda n: 16 + 5 * n)
    raise InvalidInput(
        f"{name!r} has no depth to vary: resnet50, resnet101, resnet152, resnet-a-b-c-d (the third count is varied) and"
        " vgg16 have."
    )


def _stage_counts(name: str) -> tuple[int, ...] | None:
    if name in resnet.PUBLISHED:
        return resnet.PUBLISHED[name][0]
    found = _STAGE_COUNTS.fullmatch(name)
    return None if found is None else tuple(int(count) for count in found.groups())
