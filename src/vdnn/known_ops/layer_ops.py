"""Convolutions, pools, resizing, norms, embeddings and attention, each with its backward."""

from __future__ import annotations

from vdnn.ir import Need
from vdnn.known_ops.known_op import (
    SHAPE_OF_SELF,
    Checkpoint,
    FromWindowIndices,
    KnownOp,
    LayerKind,
    Linear,
    WithoutUpdates,
    alike,
)
from vdnn.known_ops.questions import other_gradients, other_statistics

CONVOLUTIONS = (
    KnownOp(
        "convolution",
        chunks="convolution",
        linear=Linear.CONVOLUTION,
        layer=LayerKind.CONV,
        checkpoint=Checkpoint.ALWAYS,
    ),
    *alike("_convolution conv1d conv2d conv3d mkldnn_convolution", layer=LayerKind.CONV, checkpoint=Checkpoint.ALWAYS),
    KnownOp("convolution_backward", needs=other_gradients, chunks="convolution_backward"),
)

RECURRENT = (
    *alike("lstm gru rnn_tanh rnn_relu", traced_in_cpp=True),
    KnownOp("mkldnn_rnn_layer", checkpoint=Checkpoint.ALWAYS),
)

POOLS = (
    *alike(
        "_adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_max_pool2d avg_pool1d avg_pool2d avg_pool3d"
        " max_pool2d_with_indices max_pool3d_with_indices",
        chunks="each_image",
        layer=LayerKind.POOL,
    ),
    *alike(
        "adaptive_max_pool1d adaptive_max_pool3d max_pool1d max_pool1d_with_indices max_pool2d max_pool3d",
        layer=LayerKind.POOL,
    ),
    KnownOp(
        "max_pool2d_with_indices_backward",
        needs={"self": Need.SHAPE, "indices": Need.WINDOW_INDEX},
        window_dims=2,
        encoded=FromWindowIndices(),
        chunks="each_image",
    ),
    KnownOp(
        "max_pool3d_with_indices_backward",
        needs={"self": Need.SHAPE, "indices": Need.WINDOW_INDEX},
        window_dims=3,
        chunks="each_image",
    ),
    *alike(
        "_adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward adaptive_max_pool2d_backward avg_pool2d_backward"
        " avg_pool3d_backward",
        needs=SHAPE_OF_SELF,
        chunks="each_image",
    ),
)

RESIZING = (
    *alike("reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d", chunks="each_image"),
    *alike(
        "reflection_pad1d_backward reflection_pad2d_backward replication_pad1d_backward replication_pad2d_backward",
        needs=SHAPE_OF_SELF,
        chunks="each_image",
    ),
    *alike("pixel_shuffle pixel_unshuffle", chunks="each_image"),
    *alike("upsample_bilinear2d upsample_nearest2d", traced_in_cpp=True, chunks="each_image"),
    *alike(
        "_upsample_bicubic2d_aa _upsample_bilinear2d_aa _upsample_nearest_exact1d _upsample_nearest_exact2d"
        " _upsample_nearest_exact3d upsample_bicubic2d upsample_linear1d upsample_nearest1d upsample_nearest3d"
        " upsample_trilinear3d",
        traced_in_cpp=True,
    ),
)

NORMS = (
    KnownOp(
        "_native_batch_norm_legit",
        # In training, statistics come from the batch.
        without_updates={"default": WithoutUpdates("no_stats", frozenset({"running_mean", "running_var"}))},
        inductor_fuses=True,
    ),
    KnownOp("native_batch_norm_backward", needs=other_statistics, inductor_fuses=True),
    KnownOp("native_layer_norm", chunks="layer_norm", inductor_fuses=True),
    KnownOp(
        "native_layer_norm_backward",
        chunks="layer_norm_backward",
        inductor_fuses=True,
    ),
    KnownOp("native_group_norm", chunks="group_norm", inductor_fuses=True),
    KnownOp("native_group_norm_backward", chunks="group_norm_backward", inductor_fuses=True),
    KnownOp("_fused_rms_norm", chunks="layer_norm"),
    KnownOp("_fused_rms_norm_backward", chunks="rms_norm_backward"),
)

WORDS = (
    KnownOp("embedding", chunks="embedding", checkpoint=Checkpoint.ALWAYS),
    KnownOp("embedding_dense_backward", chunks="embedding_dense_backward"),
    *alike(
        "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward",
        chunks="attention",
    ),
)

OPS = (*CONVOLUTIONS, *RECURRENT, *POOLS, *RESIZING, *NORMS, *WORDS)
