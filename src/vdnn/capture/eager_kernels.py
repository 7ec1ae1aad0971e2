"""While a model is traced, have composite ops take the path they take in eager mode.

PyTorch keeps Python versions of some composite ops, written for symbolic shapes, and its tracers prefer them. Not all
compute the same bits as the C++ versions that eager mode runs: dropout with p = 0.025 scales by another last bit,
bilinear upsampling adds in another order. Shapes are concrete here, so the C++ versions can be traced, and what is
captured is what eager runs.

Dropout is the one op with a version of our own: PyTorch's fused form where it gives eager's bits, because its mask
takes a byte per element and not a whole number, and eager's own formula everywhere else.

Two exceptions keep their Python version: ops whose C++ version reads tensor values (`one_hot`), which a trace cannot,
and fused recurrent layers, which are judged where they are met (`export.py`, Note [Fused recurrent layers]).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import fx
from torch._C import DispatchKey

from vdnn.capture.nodes import tensors_of
from vdnn.errors import InexactTrace

aten = torch.ops.aten

_KEYS = (DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd)

_PREFERRED_IN_PYTHON = (
    aten.hardshrink,
    aten.softshrink,
    aten.matmul,
    aten.multi_margin_loss,
    aten.multilabel_margin_loss_forward,
    aten.upsample_bicubic2d,
    aten.upsample_bilinear2d,
    aten.upsample_linear1d,
    aten.upsample_nearest1d,
    aten.upsample_nearest2d,
    aten.upsample_nearest3d,
    aten.upsample_trilinear3d,
    aten._upsample_bicubic2d_aa,
    aten._upsample_bilinear2d_aa,
    aten._upsample_nearest_exact1d,
    aten._upsample_nearest_exact2d,
    aten._upsample_nearest_exact3d,
)


_DECIDED_BY_VALUES = {
    aten.prod: "its eager gradient takes another path when no element is zero, which a trace cannot know",
}


def require_exact(graph: fx.Graph) -> None:
    """Refuse a traced graph with an op whose eager gradient depends on values that a trace does not have."""
    for node in graph.nodes:
        packet: Any = getattr(node.target, "overloadpacket", None)
        reason = _DECIDED_BY_VALUES.get(packet)
        if reason is not None:
            raise InexactTrace(
                f"{node.target} cannot be captured bit for bit: {reason}."
                " Write the product as a chain of multiplications or as exp(sum(log)), or leave this part of the model"
                " plain."
            )


def require_dense(graph: fx.Graph) -> None:
    """Refuse a graph with sparse tensors: they have no storage of a size that is known beforehand."""
    for node in graph.nodes:
        if any(tensor is not None and tensor.layout is not torch.strided for tensor in tensors_of(node)):
            raise InexactTrace(
                f"{node.target} makes a sparse tensor, whose size is not known before it is computed."
                " Use dense gradients (nn.Embedding(sparse=False)), or leave this part of the model plain."
            )


def _dropout(tensor: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    """Eager's CPU dropout, bit for bit. The fused form multiplies by 1/(1-p) rounded once, eager divides 1 by a rounded
    1-p."""
    if p == 0 or not train or tensor.numel() == 0:
        return tensor
    if p == 1:
        return tensor * torch.zeros((), dtype=tensor.dtype, device=tensor.device)
    if _scales_alike(p, tensor.dtype):
        return torch.native_dropout(tensor, p, True)[0]
    noise = torch.empty_like(tensor).bernoulli_(1 - p)
    noise.div_(1 - p)
    return tensor * noise


def _scales_alike(p: float, dtype: torch.dtype) -> bool:
    number: Any = {torch.float32: np.float32, torch.float64: np.float64}.get(dtype)
    return number is not None and bool(number(1) / number(1 - p) == number(1 / (1 - p)))


@contextmanager
def eager_kernels() -> Iterator[None]:
    """Set the Python versions aside, and put them back."""
    replaced: dict[Any, Callable[..., Any] | None] = {aten.dropout.default: _dropout}
    replaced |= {getattr(packet, name): None for packet in _PREFERRED_IN_PYTHON for name in packet.overloads()}
    saved = {op: dict(op.py_kernels) for op in replaced}
    for op, kernel in replaced.items():
        for key in _KEYS:
            if op.py_kernels.pop(key, None) is not None and kernel is not None:
                op.py_kernels[key] = kernel
        op._dispatch_cache.clear()
    try:
        yield
    finally:
        for op, kernels in saved.items():
            op.py_kernels.update(kernels)
            op._dispatch_cache.clear()
