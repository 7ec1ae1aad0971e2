"""Rules of layers: convolutions, pools, norms, embeddings, attention, losses, each with its backward.

Enters: a `TracedCall`. Leaves: its `Split`. A layer's own rule knows which argument holds samples and which is the same
for all of them; gradients of the latter are sums over the batch. BatchNorm in training has no rule: its statistics are
of the whole batch. Reductions of losses are sums here; `mean_losses.py` has made them so.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

from vdnn.compile.forms.rows import MixesSamples, Rows, Split, Total, TracedCall, chunk_rule, only
from vdnn.compile.forms.rules_of_math import elementwise


class LossReduction(IntEnum):
    """at::Reduction: how a loss makes one number of many."""

    NONE = 0
    MEAN = 1
    SUM = 2


def _leading(call: TracedCall, *names: str) -> Rows:
    """The rows that the named arguments share, in their first dim."""
    rows = only(found for name in names if (found := call.known(call[name])))
    if rows.dim != 0:
        raise MixesSamples
    for name in names:
        call.take(call[name], rows)
    return rows


def _asked(call: TracedCall, *results: Rows | Total, sizes: Mapping[str, Rows] | None = None) -> Split:
    """The results that the call's `output_mask` asks for."""
    asked = zip(results, call["output_mask"], strict=True)
    return call.split(*(result if wanted else None for result, wanted in asked), sizes=sizes)


@chunk_rule
def convolution(call: TracedCall) -> Split:
    call.whole(call["weight"], call["bias"])
    return call.split(_leading(call, "input"))


@chunk_rule
def convolution_backward(call: TracedCall) -> Split:
    call.whole(call["weight"])
    return _asked(call, _leading(call, "grad_output", "input"), Total.SUM, Total.SUM)


@chunk_rule
def each_image(call: TracedCall) -> Split:
    """Pools, paddings and their backwards: images, planes and indices into planes in, the same out."""
    names = [name for name, argument in call.arguments.items() if argument in call.sources]
    return call.all_results(_leading(call, *names))


@chunk_rule
def layer_norm(call: TracedCall) -> Split:
    rows = call.rows("input")
    call.take(call["input"], rows)
    call.whole(call["weight"], call["bias"])
    _not_normalized(call, rows)
    return call.all_results(rows)


@chunk_rule
def layer_norm_backward(call: TracedCall) -> Split:
    rows = call.rows("input")
    for name in ("grad_out", "input", "mean", "rstd"):
        call.take(call[name], rows)
    call.whole(call["weight"], call["bias"])
    _not_normalized(call, rows)
    return _asked(call, rows, Total.SUM, Total.SUM)


@chunk_rule
def rms_norm_backward(call: TracedCall) -> Split:
    rows = call.rows("input")
    for name in ("grad_out", "input", "rstd"):
        call.take(call[name], rows)
    call.whole(call["weight"])
    _not_normalized(call, rows)
    return _asked(call, rows, Total.SUM)


def _not_normalized(call: TracedCall, rows: Rows) -> None:
    if rows.dim >= len(call.shape(call["input"])) - len(call["normalized_shape"]):
        raise MixesSamples


@chunk_rule
def group_norm(call: TracedCall) -> Split:
    call.whole(call["weight"], call["bias"])
    rows = _leading(call, "input")
    return call.all_results(rows, sizes={"N": rows})


@chunk_rule
def group_norm_backward(call: TracedCall) -> Split:
    call.whole(call["weight"])
    rows = _leading(call, "grad_out", "input", "mean", "rstd")
    return _asked(call, rows, Total.SUM, Total.SUM, sizes={"N": rows})


@chunk_rule
def embedding(call: TracedCall) -> Split:
    rows = call.rows("indices")
    call.whole(call["weight"])
    call.take(call["indices"], rows)
    return call.split(rows)


@chunk_rule
def embedding_dense_backward(call: TracedCall) -> Split:
    rows = call.rows("grad_output")
    if call["scale_grad_by_freq"]:  # by how often an index stands in the whole batch
        raise MixesSamples
    call.take(call["grad_output"], rows)
    call.take(call["indices"], rows)
    return call.split(Total.SUM)


@chunk_rule
def attention(call: TracedCall) -> Split:
    """The fused kernels for the CPU. With dropout they draw random numbers, which is the whole batch's business."""
    if call["dropout_p"]:
        raise MixesSamples
    names = [n for n in ("grad_out", "query", "key", "value", "out", "logsumexp") if call[n] is not None]
    rows = _leading(call, *names)
    if call["attn_mask"] is not None:
        call.broadcast(call["attn_mask"], rows, len(call.shape(call["query"])))
    return call.all_results(rows)


@chunk_rule
def nll_loss(call: TracedCall) -> Split:
    call.whole(call["weight"])
    rows = _leading(call, "self", "target")
    if call["reduction"] == LossReduction.NONE:
        return call.split(rows, Total.SUM)
    if call["reduction"] != LossReduction.SUM:
        raise MixesSamples
    return call.split(Total.SUM, Total.SUM)


@chunk_rule
def nll_loss_backward(call: TracedCall) -> Split:
    """The total weight is that of the whole batch, whatever the reduction."""
    call.whole(call["weight"], call["total_weight"])
    if call["reduction"] == LossReduction.NONE:
        return call.split(_leading(call, "grad_output", "self", "target"))
    call.whole(call["grad_output"])
    return call.split(_leading(call, "self", "target"))


@chunk_rule
def loss(call: TracedCall) -> Split:
    if call["reduction"] == LossReduction.NONE:
        return elementwise(call)
    if call["reduction"] != LossReduction.SUM:
        raise MixesSamples
    ndim = max(len(call.shape(source)) for source in call.sources)
    found = ((rows, len(call.shape(source))) for source in call.sources if (rows := call.known(source)))
    rows = only(rows.moved(rows.dim + ndim - own) for rows, own in found)
    for source in call.sources:
        call.broadcast(source, rows, ndim)
    return call.split(Total.SUM)


@chunk_rule
def loss_backward(call: TracedCall) -> Split:
    if call["reduction"] not in (LossReduction.NONE, LossReduction.SUM):
        raise MixesSamples
    return elementwise(call)
