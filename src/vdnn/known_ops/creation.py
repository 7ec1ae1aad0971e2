"""New tensors: empty, filled with a number, drawn at random."""

from __future__ import annotations

from vdnn.known_ops.known_op import SHAPE_OF_SELF, Fill, KnownOp, Linear, alike

FILLED = (
    KnownOp("zeros", fill=Fill.ZEROS),
    *alike("full scalar_tensor", fill=Fill.A_NUMBER),
    KnownOp("empty_strided", fill=Fill.NOTHING),
    KnownOp("empty_like", needs=SHAPE_OF_SELF, fill=Fill.NOTHING, chunks="elementwise", linear=Linear.CONSTANT),
    KnownOp("zeros_like", needs=SHAPE_OF_SELF, fill=Fill.ZEROS, chunks="elementwise", linear=Linear.CONSTANT),
    KnownOp("ones_like", needs=SHAPE_OF_SELF, chunks="elementwise", linear=Linear.CONSTANT),
    KnownOp("full_like", needs=SHAPE_OF_SELF, fill=Fill.A_NUMBER, chunks="elementwise", linear=Linear.CONSTANT),
    *alike("new_empty new_ones", needs=SHAPE_OF_SELF, chunks="new_like", linear=Linear.CONSTANT),
    KnownOp("new_zeros", needs=SHAPE_OF_SELF, fill=Fill.ZEROS, chunks="new_like", linear=Linear.CONSTANT),
    KnownOp("new_full", needs=SHAPE_OF_SELF, fill=Fill.A_NUMBER, chunks="new_like", linear=Linear.CONSTANT),
    KnownOp("new_empty_strided", needs=SHAPE_OF_SELF),
)

RANDOM = (
    *alike(
        "bernoulli binomial cauchy exponential geometric log_normal multinomial native_dropout normal"
        " normal_functional poisson rand randint randint_like randn random randperm rrelu_with_noise uniform",
        draws=True,
    ),
    *alike("rand_like randn_like", needs=SHAPE_OF_SELF, draws=True),
)

OPS = (*FILLED, *RANDOM)
