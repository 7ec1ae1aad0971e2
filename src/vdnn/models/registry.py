"""From a name to a training step: the zoo's names, `resnet-a-b-c-d`, and the user's `package.module:factory`.

Enters: what was typed. Leaves: a `Recipe` (`resolve`) or, with a batch and a device, a `Workload` (`load`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from types import MappingProxyType

import torch

from vdnn.errors import InvalidInput
from vdnn.models import (
    alexnet,
    biglstm,
    densenet,
    gnmt,
    googlenet,
    gpt2,
    inception_v3,
    inception_v4,
    nin,
    overfeat,
    resnet,
    unet,
    vgg,
    vit,
)
from vdnn.models.factory import UserFactory, find_factory
from vdnn.models.spec import ModelSpec, Recipe, Workload

FAMILIES = (
    alexnet.SPECS,
    overfeat.SPECS,
    nin.SPECS,
    googlenet.SPECS,
    vgg.SPECS,
    resnet.SPECS,
    inception_v3.SPECS,
    inception_v4.SPECS,
    densenet.SPECS,
    unet.SPECS,
    vit.SPECS,
    gpt2.SPECS,
    biglstm.SPECS,
    gnmt.SPECS,
)
MODELS: Mapping[str, ModelSpec] = MappingProxyType({spec.name: spec for family in FAMILIES for spec in family})
STAGE_COUNTS = re.compile(r"resnet-(\d+)-(\d+)-(\d+)-(\d+)")


def names() -> tuple[str, ...]:
    """The zoo, oldest networks first."""
    return tuple(MODELS)


def resolve(name: str) -> ModelSpec | UserFactory:
    """What a name stands for. Nothing is built yet; of a user's factory, the module is imported."""
    if name in MODELS:
        return MODELS[name]
    if ":" in name:
        return find_factory(name)
    if (match := STAGE_COUNTS.fullmatch(name)) is not None:
        return resnet_by_counts(name, [int(count) for count in match.groups()])
    raise InvalidInput(unknown(name))


def load(
    name: str,
    batch: int,
    *,
    device: str | torch.device = "cpu",
    small: bool = False,
    image_size: int | None = None,
    channels_last: bool = False,
) -> Workload:
    """One training step of the named network on `device`; on "meta" it takes no memory. `small` acts first.

    `channels_last` lays weights and images out as NHWC, in which a CPU's convolutions need no workspace.
    """
    recipe: Recipe = resolve(name)
    return make(
        recipe.small() if small else recipe, batch, device=device, image_size=image_size, channels_last=channels_last
    )


def make(
    recipe: Recipe,
    batch: int,
    *,
    device: str | torch.device = "cpu",
    image_size: int | None = None,
    channels_last: bool = False,
) -> Workload:
    """One training step of a network that has been found already."""
    if image_size is not None:
        recipe = recipe.at_image_size(image_size)
    with torch.device(device):
        workload = recipe.workload(batch)
    return _in_channels_last(workload) if channels_last else workload


def _in_channels_last(workload: Workload) -> Workload:
    if not any(argument.ndim == 4 for argument in workload.args):
        raise InvalidInput(f"{workload.name} takes no images: channels_last has nothing to lay out.")
    workload.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    args = (a.to(memory_format=torch.channels_last) if a.ndim == 4 else a for a in workload.args)
    return replace(workload, args=tuple(args))


def resnet_by_counts(name: str, counts: list[int]) -> ModelSpec:
    if min(counts) < 1:
        raise InvalidInput(
            f"{name!r}: each of the four stages of a ResNet needs at least one block, as in resnet-3-4-6-3."
        )
    return resnet.resnet(counts)


def unknown(name: str) -> str:
    close = get_close_matches(name.lower(), MODELS, n=3, cutoff=0.5)
    meant = f" Close to it: {', '.join(close)}." if close else ""
    return (
        f"there is no model {name!r}.{meant} `vdnn models` lists the {len(MODELS)} names;"
        " resnet-a-b-c-d takes any stage counts, and package.module:factory a network of your own."
    )
