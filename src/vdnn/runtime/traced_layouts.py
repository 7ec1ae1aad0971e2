"""Does an op return what its trace said? Asked once, on the watched step.

A trace decides by strides: which reshape is a view, in which order a mask is drawn, what a kernel takes for
channels_last. Where the stand-in for an op returns other strides than the op itself, those decisions are wrong and so
may be the gradients. Of PyTorch's own ops the kernels were asked while the trace was made (`capture/asked_kernels.py`);
an op of somebody else's has the layouts that its `register_fake` says. Strides do not change from step to step, so
looking once is enough, and refusing is better than a silently different gradient.
"""

from __future__ import annotations

from typing import Any

import torch

from vdnn.errors import InexactTrace

TracedLayout = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]


def expect(result: Any, layouts: tuple[TracedLayout | None, ...], name: str) -> None:
    """Raise InexactTrace unless the tensors in `result` have the traced layouts. None: nothing was traced there."""
    tensors = result if isinstance(result, (tuple, list)) else (result,)
    for tensor, layout in zip(tensors, layouts, strict=False):
        if layout is not None and isinstance(tensor, torch.Tensor) and not _agrees(tensor, layout):
            shape, stride, dtype = layout
            raise InexactTrace(
                f"{name} returned {tuple(tensor.shape)} with strides {tensor.stride()} and {tensor.dtype}, where"
                f" PyTorch's trace expected {shape} with strides {stride} and {dtype}: what follows was traced for"
                f" another layout and would not be bit for bit."
                " Put .contiguous() before or after this op, have its register_fake (if it is yours) say what it"
                " returns, or leave this part of the model plain."
            )


def _agrees(tensor: torch.Tensor, layout: TracedLayout) -> bool:
    shape, stride, dtype = layout
    if tuple(tensor.shape) != shape or tensor.dtype != dtype:
        return False
    # The stride of a dimension of one element, or of an empty tensor, leads nowhere.
    return tensor.numel() == 0 or all(
        a == b or size == 1 for a, b, size in zip(tensor.stride(), stride, shape, strict=True)
    )
