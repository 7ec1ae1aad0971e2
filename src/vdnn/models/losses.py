"""The losses of the zoo: `loss(output, target) -> scalar`. Each takes what its networks return, and nothing else."""

from __future__ import annotations

import torch.nn.functional as F  # noqa: N812  the name everyone knows it by
from torch import Tensor

AUXILIARY_WEIGHT = 0.4  # of Inception-v3's side head: TF-Slim's value and torchvision's reference training script's


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Classes in dim 1: one label per image, or one per pixel."""
    return F.cross_entropy(logits, target)


def token_cross_entropy(logits_blv: Tensor, target_bl: Tensor) -> Tensor:
    return F.cross_entropy(logits_blv.flatten(0, 1), target_bl.flatten())


def auxiliary_cross_entropy(outputs: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
    """The main head's loss plus a share of the side head's."""
    logits, auxiliary = outputs
    return F.cross_entropy(logits, target) + AUXILIARY_WEIGHT * F.cross_entropy(auxiliary, target)
