"""Activations, softmax and dropout, each with its backward."""

from __future__ import annotations

from vdnn.ir import Need
from vdnn.known_ops.known_op import (
    GRAD_INPUT,
    IN_PLACE,
    OUT,
    Checkpoint,
    FromBits,
    KnownOp,
    OutForm,
    Zeros,
    alike,
)
from vdnn.known_ops.questions import above_threshold, above_zero, between_bounds, on_the_slope, sign_or_bit

ONE_SIXTH = 1.0 / 6.0  # the slope of a hard sigmoid

FORWARD = (
    *alike("relu threshold", in_place=IN_PLACE, zeros=Zeros.MADE),
    *alike("celu elu gelu hardsigmoid hardswish hardtanh leaky_relu mish sigmoid silu tanh", in_place=IN_PLACE),
    *alike("hardshrink softshrink", out=OUT, traced_in_cpp=True),
    KnownOp("softplus", out=OUT),
    *alike("_prelu_kernel log_sigmoid_forward", chunks="elementwise"),  # without PyTorch's tag `pointwise`
)

BACKWARD = (
    # One bit of each element tells where the gradient passes.
    KnownOp("threshold_backward", needs=sign_or_bit, details=above_threshold, encoded=FromBits(), out=GRAD_INPUT),
    KnownOp(
        "leaky_relu_backward",
        needs={"self": Need.SIGN},
        details=above_zero,
        encoded=FromBits(off="negative_slope", zero_off=False),
        out=GRAD_INPUT,
        chunks="elementwise",
    ),
    KnownOp(
        "hardtanh_backward",
        # Where an element is NaN, aten's vector loop says no and its scalar tail says yes; a bit says no.
        needs={"self": Need.BOOL},  # is it between the two bounds?
        details=between_bounds,
        encoded=FromBits(),
        out=GRAD_INPUT,
        chunks="elementwise",
    ),
    KnownOp(
        "hardsigmoid_backward",
        needs={"self": Need.BOOL},
        details=on_the_slope,
        encoded=FromBits(on=ONE_SIXTH),
        out=GRAD_INPUT,
        chunks="elementwise",
    ),
    *alike("gelu_backward sigmoid_backward silu_backward tanh_backward", out=GRAD_INPUT),
    *alike("hardshrink_backward log_sigmoid_backward softshrink_backward", out=GRAD_INPUT, chunks="elementwise"),
    *alike(
        "elu_backward softplus_backward",
        out=GRAD_INPUT,
        chunks="elementwise",
    ),
    *alike("_prelu_kernel_backward hardswish_backward mish_backward", chunks="elementwise"),
    KnownOp("native_dropout_backward", needs={"mask": Need.BOOL}),
)

SOFTMAX = (
    KnownOp("_softmax", out=OUT, row_by_row=True, chunks="over_rows", inductor_fuses=True),
    KnownOp(
        "_log_softmax",
        out=OUT,
        row_by_row=True,
        chunks="over_rows",
        inductor_fuses=True,
        checkpoint=Checkpoint.ALWAYS,
        in_loss=True,
    ),
    KnownOp("_safe_softmax", chunks="over_rows"),
    KnownOp(
        "_softmax_backward_data",
        out={"default": OutForm("out", "grad_input")},
        row_by_row=True,
        chunks="over_rows",
        inductor_fuses=True,
    ),
    KnownOp(
        "_log_softmax_backward_data",
        out=OUT,
        row_by_row=True,
        chunks="over_rows",
        inductor_fuses=True,
    ),
)

OPS = (*FORWARD, *BACKWARD, *SOFTMAX)
