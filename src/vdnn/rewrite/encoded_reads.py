"""Write a backward op in the form that reads one of its arguments encoded.

Enters: a traced node, which of its arguments is an encoding, and what the encoding means. Leaves: the function to call
and its arguments. The counterpart of `capture/ops/information.py`, which says for which nodes this may be asked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from vdnn.capture.nodes import arguments_of, tensor_of
from vdnn.capture.ops.information import op_name
from vdnn.ir import Detail
from vdnn.known_ops import known
from vdnn.known_ops.known_op import FromBits, FromFactorBits, FromWindowIndices
from vdnn.runtime.encoded_ops import masked_gradient, window_gradient
from vdnn.torch_private import OpOverload

Call = tuple[Callable[..., torch.Tensor], tuple[Any, ...]]


def from_encoding(
    node: fx.Node, source: fx.Node, encoding: fx.Node, detail: Detail, read: Callable[[Any], Any]
) -> Call:
    """The call that replaces `node` when `source` is there as `encoding`. `read` finds the live copy of an argument."""
    assert isinstance(node.target, OpOverload), f"{node} has no schema"
    arguments = arguments_of(node)
    name = op_name(node)
    form = known(name.removesuffix("_")).encoded
    if isinstance(form, FromWindowIndices):
        layout = tensor_of(node)
        assert layout is not None, f"{node} returns a tensor"
        return window_gradient, (read(arguments["grad_output"]), encoding, detail, tuple(layout.shape), layout.stride())
    if isinstance(form, FromFactorBits):
        other = arguments["other"] if arguments["self"] is source else arguments["self"]
        out = arguments["self"] if name == "mul_" else arguments.get("out")
        return masked_gradient, (read(other), encoding, read(out), detail[3], detail[4], False)
    assert isinstance(form, FromBits), f"{name} has no form that reads an argument encoded"
    off = arguments.get(form.off, 0.0) if isinstance(form.off, str) else form.off
    return masked_gradient, (
        read(arguments["grad_output"]),
        encoding,
        read(arguments.get("grad_input")),
        form.on,
        off,
        form.zero_off,
    )
