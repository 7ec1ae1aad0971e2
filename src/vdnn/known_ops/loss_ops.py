"""Losses and their backwards."""

from __future__ import annotations

from vdnn.known_ops.known_op import (
    GRAD_INPUT,
    SHAPE_OF_SELF,
    Checkpoint,
    KernelStorage,
    KnownOp,
    OutForm,
    alike,
)

OPS = (
    *alike("nll_loss_forward nll_loss2d_forward", chunks="nll_loss", checkpoint=Checkpoint.ALWAYS, in_loss=True),
    *alike("nll_loss_backward nll_loss2d_backward", needs=SHAPE_OF_SELF, chunks="nll_loss_backward"),
    *alike("binary_cross_entropy mse_loss", kernel_storage=KernelStorage.OF_ELEMENTS, chunks="loss", in_loss=True),
    *alike("smooth_l1_loss soft_margin_loss", kernel_storage=KernelStorage.OF_ELEMENTS, chunks="loss"),
    KnownOp("huber_loss", chunks="loss"),
    *alike("binary_cross_entropy_backward soft_margin_loss_backward", chunks="loss_backward"),
    *alike(
        "mse_loss_backward smooth_l1_loss_backward",
        out=GRAD_INPUT,
        chunks="loss_backward",
    ),
    KnownOp(
        "huber_loss_backward",
        out={"default": OutForm("out", "grad_input")},
        chunks="loss_backward",
    ),
    *alike("multi_margin_loss multilabel_margin_loss_forward", traced_in_cpp=True),
)
