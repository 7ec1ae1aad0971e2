"""Which ops may write their result over an input, and the form of each that does.

Enters: an op of a functional graph. Leaves: the op that computes the same bits into memory that exists already.
`capture/tidy/in_place.py` decides where; this file only knows that it is exact.

The one idea: an element may be overwritten once nothing that is still to be computed reads it. Three kinds of ops keep
to that. Elementwise ops read an element only for the result at its own position. Ops that change some elements of a
copy are eager's in-place op after a copy, and need no copy. Softmax and its kin read a whole row before they write any
of it.

Note: [Rows are read before they are written]
The CPU kernels of softmax, log-softmax and their backwards (ATen/native/cpu/SoftMaxKernel.cpp) handle one row, or one
block of columns, at a time: reduce over all of it, then map each element to its result. The map reads the position it
writes. Blocks share no element, so threads do not matter. This is known of the CPU's kernels only. They fill memory as
if it were contiguous, whatever strides they are told.

Left out on purpose: forms that PyTorch generates by calling the functional op and copying its result
(`hardswish_backward.out`, the backwards of BatchNorm and LayerNorm), which take more memory and not less.
`tests/cpu/test_in_place_forms.py` holds every entry to the bits of its functional form, and to allocating nothing.
"""

from __future__ import annotations

import torch

from vdnn.torch_private import OpOverload

aten = torch.ops.aten

_UNARY = """
    abs bitwise_not ceil celu clamp clamp_max clamp_min cos elu erf erfc exp expm1 floor gelu hardsigmoid hardswish
    hardtanh leaky_relu log log1p log2 logical_not mish nan_to_num neg reciprocal relu round rsqrt sgn sigmoid sign silu
    sin sqrt tanh threshold tril triu trunc
"""

_IN_PLACE: dict[str, str] = {
    "default": f"{_UNARY} addcdiv addcmul index_add index_copy index_put logical_and logical_or logical_xor"
    " scatter_add",
    "Tensor": "add bitwise_and bitwise_or bitwise_xor clamp clamp_max clamp_min div fill lerp masked_fill mul sub",
    "Scalar": "add div fill lerp masked_fill sub",
    "int_Scalar": "index_fill",
    "int_Tensor": "index_fill",
    "src": "scatter",
    "value": "scatter",
}
"""Names of ops by the overload that exists with and without a trailing underscore."""


def _overload(name: str, overload: str) -> OpOverload:
    found = getattr(getattr(aten, name), overload)
    assert isinstance(found, OpOverload), f"aten.{name}.{overload} is no op"
    return found


IN_PLACE_OF: dict[OpOverload, OpOverload] = {
    _overload(name, overload): _overload(f"{name}_", overload)
    for overload, names in _IN_PLACE.items()
    for name in names.split()
} | {
    # In bfloat16 mul_.Scalar rounds its number first and mul.Scalar does not. mul_.Tensor takes a number as the latter.
    aten.mul.Scalar: aten.mul_.Tensor,
    aten.pow.Tensor_Scalar: aten.pow_.Scalar,
    aten.pow.Tensor_Tensor: aten.pow_.Tensor,
}
"""Ops that may write over their first argument."""

_ROW_BY_ROW: dict[OpOverload, tuple[OpOverload, str]] = {
    aten._softmax.default: (aten._softmax.out, "out"),
    aten._log_softmax.default: (aten._log_softmax.out, "out"),
    aten._softmax_backward_data.default: (aten._softmax_backward_data.out, "grad_input"),
    aten._log_softmax_backward_data.default: (aten._log_softmax_backward_data.out, "out"),
}
"""Note [Rows are read before they are written]."""

_GRADIENTS = """
    elu gelu hardsigmoid hardshrink hardtanh leaky_relu log_sigmoid sigmoid silu softplus softshrink tanh threshold
    mse_loss smooth_l1_loss
"""

OUT_OF: dict[OpOverload, tuple[OpOverload, str]] = {
    **{
        _overload(f"{name}_backward", "default"): (_overload(f"{name}_backward", "grad_input"), "grad_input")
        for name in _GRADIENTS.split()
    },
    **{_overload(name, "Tensor"): (_overload(name, "out"), "out") for name in ("add", "sub", "mul", "div")},
    **{
        _overload(name, "default"): (_overload(name, "out"), "out") for name in ("hardshrink", "softplus", "softshrink")
    },
    **{_overload(name, "default"): (_overload(name, "out"), "out") for name in ("maximum", "minimum")},
    aten.huber_loss_backward.default: (aten.huber_loss_backward.out, "grad_input"),
    aten.where.self: (aten.where.self_out, "out"),
    **_ROW_BY_ROW,
}
"""Ops that may write over any of their arguments, through their form with an output argument, and what it is called."""

PART_OF: dict[OpOverload, OpOverload] = {
    aten.select_scatter.default: aten.select.int,
    aten.slice_scatter.default: aten.slice.Tensor,
    aten.diagonal_scatter.default: aten.diagonal.default,
}
"""Ops that replace a part of their first argument, and the view that shows that part: eager's `y[:, 0] = x`."""

OVER_SECOND = frozenset({aten.copy.default})
"""`copy(y, x)` has the values of x and the layout of y. Where x is laid out so already, it is x."""


def is_known_exact(op: object, result: torch.Tensor) -> bool:
    """Whether the op's form was held to its bits for such a result. Elementwise kernels need no look at it."""
    return op not in _ROW_BY_ROW or (result.device.type == "cpu" and result.is_contiguous())
