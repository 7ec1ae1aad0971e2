"""Backward ops that read an encoding as it is, so that nobody decodes it: fused forms of a few aten ops.

Enters: a gradient and an encoding. Leaves: exactly what the aten op makes of the gradient and the decoded storage, bit
for bit, without that storage ever existing. ReLU's backward from bits also moves less memory than from values: 8 bytes
per element instead of 12. Which nodes may be written so is `capture/ops/information.py`'s word. `held` is what lives
until the call and is not read by it.
"""

from __future__ import annotations

import torch

from vdnn.codecs.codec import typed
from vdnn.codecs.kernels import kernels_of
from vdnn.codecs.window_index import window_of
from vdnn.ir import Detail
from vdnn.runtime.encodings import raw
from vdnn.runtime.step_memory import aside
from vdnn.torch_private import without_torch_dispatch


def masked_gradient(
    gradient: torch.Tensor,
    encoding: torch.Tensor,
    out: torch.Tensor | None,
    on: float,
    off: float,
    zero_off: bool,
    *held: torch.Tensor,
) -> torch.Tensor:
    """`gradient * on` where the bit is set; elsewhere zero, or `gradient * off`. `out` may be the gradient itself."""
    target = torch.empty_like(gradient) if out is None else out
    kernels = kernels_of(gradient.device.type)
    with without_torch_dispatch(), aside(gradient.device):
        kernels.masked_gradient(raw(gradient), raw(encoding), raw(target), "float32", on, off, zero_off)
    return target


def window_gradient(
    gradient: torch.Tensor,
    encoding: torch.Tensor,
    detail: Detail,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    *held: torch.Tensor,
) -> torch.Tensor:
    """A max-pool's backward: each element of the gradient goes to where in its window the maximum was."""
    target = torch.empty_strided(shape, stride, dtype=gradient.dtype, device=gradient.device)
    kernels = kernels_of(gradient.device.type)
    given, result = typed(raw(gradient), "float32"), typed(raw(target), "float32")
    with without_torch_dispatch(), aside(gradient.device):  # what kernels need for themselves is a workspace
        kernels.window_backward(given, raw(encoding), window_of(detail), result)
    return target
