"""Convolutions computed another way, as generated code calls them.

Enters and leaves: what `convolutions/compute.py` takes and returns. A step that is watched sees one op with its
results, as it would of the op itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from vdnn.convolutions import compute
from vdnn.runtime import running_step as steps
from vdnn.torch_private import OpOverload, without_torch_dispatch

aten = torch.ops.aten


def convolution(*arguments: Any) -> torch.Tensor:
    with without_torch_dispatch():
        result = compute.convolution(*arguments)
    steps.made((result,))
    return result


def convolution_backward(*arguments: Any) -> compute.Gradients:
    with without_torch_dispatch():
        gradients = compute.convolution_backward(*arguments)
    steps.made(gradients)
    return gradients


IN_A_STEP: Mapping[OpOverload, Callable[..., Any]] = {
    aten.convolution.default: convolution,
    aten.convolution_backward.default: convolution_backward,
}
"""By op: what generated code calls in its place."""
