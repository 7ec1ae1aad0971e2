"""Write a traced op as the call of one of its variants.

Enters: a node and the name of a variant. Leaves: the function to call and its arguments: the name, the layouts that the
trace gave the results, and the op's own arguments, still nodes of the traced graph. `cost/op_variants.py` says which
names there are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from vdnn.capture.nodes import arguments_of, op_of, tensors_of
from vdnn.runtime import convolution_variants as variants
from vdnn.runtime.convolution_variants import Layout

_CONVOLUTION = torch.ops.aten.convolution.default
_CONVOLUTION_BACKWARD = torch.ops.aten.convolution_backward.default
_IN_A_STEP = {_CONVOLUTION: variants.convolution, _CONVOLUTION_BACKWARD: variants.convolution_backward}
_ALONE = {_CONVOLUTION: variants.compute_convolution, _CONVOLUTION_BACKWARD: variants.compute_convolution_backward}

WITH_VARIANTS = frozenset(_ALONE)
"""Ops that can be computed in more than one way."""

Call = tuple[Callable[..., Any], tuple[Any, ...]]


def variant_call(node: fx.Node, variant: str) -> Call:
    """What generated code calls in place of the op."""
    return _IN_A_STEP[op_of(node)], _arguments(node, variant)


def variant_alone(node: fx.Node, variant: str) -> Call:
    """The same outside a training step, to be measured."""
    return _ALONE[op_of(node)], _arguments(node, variant)


def _arguments(node: fx.Node, variant: str) -> tuple[Any, ...]:
    return (variant, tuple(_layout(tensor) for tensor in tensors_of(node)), *arguments_of(node).values())


def _layout(tensor: torch.Tensor | None) -> Layout | None:
    return None if tensor is None else (tuple(tensor.shape), tuple(tensor.stride()))
