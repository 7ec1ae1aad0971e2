"""Rules of layers: convolutions, pools, norms, embeddings, attention, losses, each with its backward.

Enters: a `Call`. Leaves: its `Split`. A layer's own rule knows which argument holds samples and which is the same for
all of them; gradients of the latter are sums over the batch. BatchNorm in training has no rule: its statistics are of
the whole batch. Reductions of losses are sums here; `mean_losses.py` has made them so.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

from vdnn.compile.forms.rows import Call, MixesSamples, Rows, Split, Total, only
from vdnn.compile.forms.rules_of_math import elementwise


class Reduction(IntEnum):
    """at::Reduction: how a loss makes one number of many."""

    NONE = 0
    MEAN = 1
    SUM = 2


CROSS_ENTROPIES = frozenset({"nll_loss_forward", "nll_loss2d_forward"})


def _leading(call: Call, *names: str) -> Rows:
    """The rows that the named arguments share, in their first dim."""
    rows = only(found for name in names if (found := call.known(call[name])))
    if rows.dim != 0:
        raise MixesSamples
    for name in names:
        call.take(call[name], rows)
    return rows


def _asked(call: Call, *results: Rows | Total, sizes: Mapping[str, Rows] | None = None) -> Split:
    """The results that the call's `output_mask` asks for."""
    asked = zip(results, call["output_mask"], strict=True)
    return call.split(*(result if wanted else None for result, wanted in asked), sizes=sizes)


def convolution(call: Call) -> Split:
    call.whole(call["weight"], call["bias"])
    return call.split(_leading(call, "input"))


def convolution_backward(call: Call) -> Split:
    call.whole(call["weight"])
    return _asked(call, _leading(call, "grad_output", "input"), Total.SUM, Total.SUM)


def each_image(call: Call) -> Split:
    """Pools, paddings and their backwards: images, planes and indices into planes in, the same out."""
    names = [name for name, argument in call.arguments.items() if argument in call.sources]
    return call.all_results(_leading(call, *names))


def layer_norm(call: Call) -> Split:
    rows = call.rows("input")
    call.take(call["input"], rows)
    call.whole(call["weight"], call["bias"])
    _not_normalized(call, rows)
    return call.all_results(rows)


def layer_norm_backward(call: Call) -> Split:
    rows = call.rows("input")
    for name in ("grad_out", "input", "mean", "rstd"):
        call.take(call[name], rows)
    call.whole(call["weight"], call["bias"])
    _not_normalized(call, rows)
    return _asked(call, rows, Total.SUM, Total.SUM)


def rms_norm_backward(call: Call) -> Split:
    rows = call.rows("input")
    for name in ("grad_out", "input", "rstd"):
        call.take(call[name], rows)
    call.whole(call["weight"])
    _not_normalized(call, rows)
    return _asked(call, rows, Total.SUM)


def _not_normalized(call: Call, rows: Rows) -> None:
    if rows.dim >= len(call.shape(call["input"])) - len(call["normalized_shape"]):
        raise MixesSamples


def group_norm(call: Call) -> Split:
    call.whole(call["weight"], call["bias"])
    rows = _leading(call, "input")
    return call.all_results(rows, sizes={"N": rows})


def group_norm_backward(call: Call) -> Split:
    call.whole(call["weight"])
    rows = _leading(call, "grad_out", "input", "mean", "rstd")
    return _asked(call, rows, Total.SUM, Total.SUM, sizes={"N": rows})


def embedding(call: Call) -> Split:
    rows = call.rows("indices")
    call.whole(call["weight"])
    call.take(call["indices"], rows)
    return call.split(rows)


def embedding_dense_backward(call: Call) -> Split:
    rows = call.rows("grad_output")
    if call["scale_grad_by_freq"]:  # by how often an index stands in the whole batch
        raise MixesSamples
    call.take(call["grad_output"], rows)
    call.take(call["indices"], rows)
    return call.split(Total.SUM)


def attention(call: Call) -> Split:
    """The fused kernels for the CPU. With dropout they draw random numbers, which is the whole batch's business."""
    if call["dropout_p"]:
        raise MixesSamples
    names = [n for n in ("grad_out", "query", "key", "value", "out", "logsumexp") if call[n] is not None]
    rows = _leading(call, *names)
    if call["attn_mask"] is not None:
        call.broadcast(call["attn_mask"], rows, len(call.shape(call["query"])))
    return call.all_results(rows)


def nll_loss(call: Call) -> Split:
    call.whole(call["weight"])
    rows = _leading(call, "self", "target")
    if call["reduction"] == Reduction.NONE:
        return call.split(rows, Total.SUM)
    if call["reduction"] != Reduction.SUM:
        raise MixesSamples
    return call.split(Total.SUM, Total.SUM)


def nll_loss_backward(call: Call) -> Split:
    """The total weight is that of the whole batch, whatever the reduction."""
    call.whole(call["weight"], call["total_weight"])
    if call["reduction"] == Reduction.NONE:
        return call.split(_leading(call, "grad_output", "self", "target"))
    call.whole(call["grad_output"])
    return call.split(_leading(call, "self", "target"))


def loss(call: Call) -> Split:
    if call["reduction"] == Reduction.NONE:
        return elementwise(call)
    if call["reduction"] != Reduction.SUM:
        raise MixesSamples
    ndim = max(len(call.shape(source)) for source in call.sources)
    found = ((rows, len(call.shape(source))) for source in call.sources if (rows := call.known(source)))
    rows = only(rows.moved(rows.dim + ndim - own) for rows, own in found)
    for source in call.sources:
        call.broadcast(source, rows, ndim)
    return call.split(Total.SUM)


def loss_backward(call: Call) -> Split:
    if call["reduction"] not in (Reduction.NONE, Reduction.SUM):
        raise MixesSamples
    return elementwise(call)


_IMAGES = """
    _adaptive_avg_pool2d _adaptive_avg_pool2d_backward _adaptive_avg_pool3d _adaptive_avg_pool3d_backward
    adaptive_max_pool2d adaptive_max_pool2d_backward avg_pool1d avg_pool2d avg_pool2d_backward avg_pool3d
    avg_pool3d_backward max_pool2d_with_indices max_pool2d_with_indices_backward max_pool3d_with_indices
    max_pool3d_with_indices_backward pixel_shuffle pixel_unshuffle reflection_pad1d reflection_pad1d_backward
    reflection_pad2d reflection_pad2d_backward replication_pad1d replication_pad1d_backward replication_pad2d
    replication_pad2d_backward upsample_bilinear2d upsample_nearest2d
"""

LOSSES = ("binary_cross_entropy", "huber_loss", "mse_loss", "smooth_l1_loss", "soft_margin_loss")

RULES = {
    **dict.fromkeys(_IMAGES.split(), each_image),
    **dict.fromkeys(("native_layer_norm", "_fused_rms_norm"), layer_norm),
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward"), nll_loss),
    **dict.fromkeys(("nll_loss_backward", "nll_loss2d_backward"), nll_loss_backward),
    **dict.fromkeys(LOSSES, loss),
    **dict.fromkeys((f"{name}_backward" for name in LOSSES), loss_backward),
    "_scaled_dot_product_flash_attention_for_cpu": attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": attention,
    "convolution": convolution,
    "convolution_backward": convolution_backward,
    "native_layer_norm_backward": layer_norm_backward,
    "_fused_rms_norm_backward": rms_norm_backward,
    "native_group_norm": group_norm,
    "native_group_norm_backward": group_norm_backward,
    "embedding": embedding,
    "embedding_dense_backward": embedding_dense_backward,
}
