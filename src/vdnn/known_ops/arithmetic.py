"""Elementwise arithmetic, reductions, ops along a dim, matrix products."""

from __future__ import annotations

from vdnn.ir import Need
from vdnn.known_ops.known_op import (
    IN_PLACE,
    OUT,
    Checkpoint,
    FromFactorBits,
    KnownOp,
    Linear,
    OutForm,
    Zeros,
    alike,
    same,
)

_OUT_OF_TENSORS = {"Tensor": OutForm("out")}

ELEMENTWISE = (
    *alike(
        "abs addcdiv addcmul bitwise_not ceil cos erf erfc exp expm1 floor log log1p log2 logical_and logical_not"
        " logical_or logical_xor nan_to_num reciprocal round rsqrt sgn sign sin sqrt trunc",
        in_place=IN_PLACE,
    ),
    KnownOp("neg", in_place=IN_PLACE, linear=Linear.IN_ITS_TENSOR),
    *alike("bitwise_and bitwise_or bitwise_xor", in_place=same("Tensor")),
    *alike("clamp clamp_max clamp_min", in_place=same("default", "Tensor")),
    *alike("fill lerp", in_place=same("Tensor", "Scalar")),
    *alike("maximum minimum", out=OUT),
    KnownOp("pow", in_place={"Tensor_Scalar": "Scalar", "Tensor_Tensor": "Tensor"}),
    KnownOp(
        "add",
        in_place=same("Tensor", "Scalar"),
        out=_OUT_OF_TENSORS,
        linear=Linear.SUM,
        checkpoint=Checkpoint.OF_TWO_MAPS,
    ),
    KnownOp("sub", in_place=same("Tensor", "Scalar"), out=_OUT_OF_TENSORS, linear=Linear.SUM),
    KnownOp(
        "mul",
        # In bfloat16 mul_.Scalar rounds its number first and mul.Scalar does not. mul_.Tensor takes a number as the
        # latter.
        in_place={"Tensor": "Tensor", "Scalar": "Tensor"},
        out=_OUT_OF_TENSORS,
        encoded=FromFactorBits(),
        linear=Linear.PRODUCT,
        zeros=Zeros.WHERE_ANY_HAS,  # of dropout's noise too few elements are zero
    ),
    KnownOp("div", in_place=same("Tensor", "Scalar"), out=_OUT_OF_TENSORS, linear=Linear.QUOTIENT, divides=True),
    *alike("floor_divide fmod remainder", divides=True),
    KnownOp(
        "masked_fill",
        needs={"mask": Need.BOOL},
        in_place=same("Tensor", "Scalar"),
        chunks="elementwise",
        linear=Linear.MASKED,
    ),
    KnownOp("where", needs={"condition": Need.BOOL}, out={"self": OutForm("self_out")}, linear=Linear.CHOICE),
    KnownOp("_to_copy", chunks="elementwise", linear=Linear.IN_ITS_TENSOR, inductor_fuses=True),
    KnownOp("copy", over_second=True, chunks="elementwise"),
    KnownOp("clone", linear=Linear.IN_ITS_TENSOR, inductor_fuses=True, zeros=Zeros.WHERE_ALL_HAVE),
)

REDUCTIONS = (
    *alike("all amax amin any argmax argmin logsumexp max min std var var_mean", chunks="reduce"),
    KnownOp("sum", chunks="add_up", linear=Linear.IN_ITS_TENSOR),
    KnownOp("mean", chunks="reduce", linear=Linear.IN_ITS_TENSOR),
    KnownOp(
        "prod",
        chunks="reduce",
        inexact_because="its eager gradient takes another path when no element is zero, which a trace cannot know",
    ),
)

ALONG_A_DIM = (
    *alike("cumprod logcumsumexp sort topk", chunks="over_rows"),
    *alike("cumsum flip gather", chunks="over_rows", linear=Linear.IN_ITS_TENSOR),
    *alike("tril triu", in_place=IN_PLACE, chunks="triangle", linear=Linear.IN_ITS_TENSOR),
)

PRODUCTS = (
    *alike("mm bmm", chunks="product", linear=Linear.PRODUCT, checkpoint=Checkpoint.ALWAYS),
    *alike("addmm baddbmm", chunks="add_to_product", linear=Linear.ADDED_PRODUCT, checkpoint=Checkpoint.ALWAYS),
    *alike("dot mv", linear=Linear.PRODUCT, checkpoint=Checkpoint.ALWAYS),
    KnownOp("addmv", linear=Linear.ADDED_PRODUCT, checkpoint=Checkpoint.ALWAYS),
    KnownOp("matmul", traced_in_cpp=True, linear=Linear.PRODUCT, checkpoint=Checkpoint.ALWAYS),
    KnownOp("linear", checkpoint=Checkpoint.ALWAYS),
)

OPS = (*ELEMENTWISE, *REDUCTIONS, *ALONG_A_DIM, *PRODUCTS)
