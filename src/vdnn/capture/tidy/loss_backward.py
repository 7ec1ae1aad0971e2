"""Cross entropy's backward, a few rows at a time, over the log-probabilities that it reads.

Enters: a joint graph in execution order. Leaves: the same graph in which the gradient of the logits is written into the
memory of the log-probabilities, where those are large and nobody reads them again. With a vocabulary of 50000 words
tensors of that size are most of a language model's memory. Eager code has three of them at that moment (the
log-probabilities, their gradient, the logits' gradient), writing into dead inputs leaves two, this one and a part.

The one idea: every row of the result comes from the same row of the log-probabilities and from one target. So the
gradient of the log-probabilities, which is zero but for one element per row, need never exist for more than some rows.
The kernels work row by row (Note [Rows are read before they are written]), so no bit changes.

Log-probabilities are saved by forward, and a retained graph reads them again: what the runtime does about that is in
`runtime/overwritten.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import fx

from vdnn.capture.nodes import arguments_of, copy_meta, is_op, shape_of, storage_key, storage_keys, value_of
from vdnn.capture.ops.in_place_forms import is_known_exact
from vdnn.capture.tidy.in_place import call_like, have_same_layout

aten = torch.ops.aten

NUM_PARTS = 8
"""A part is then an eighth of the memory that is saved, and its calls are few."""

WORTH_PARTS_NBYTES = 4 << 20
"""Log-probabilities from which on it is done: less would save little and make every plan longer."""

_NO_REDUCTION = 0


def write_over_log_probabilities(graph: fx.Graph) -> None:
    for node in graph.find_nodes(op="call_function", target=aten._log_softmax_backward_data.default, sort=True):
        if _may_run_in_parts(node):
            _run_in_parts(node)


def _may_run_in_parts(node: fx.Node) -> bool:
    """A cross entropy over the rows of a matrix, whose log-probabilities the step made and reads for the last time."""
    gradient, rows, dim, dtype = node.args
    if not isinstance(gradient, fx.Node) or gradient.target is not aten.nll_loss_backward.default:
        return False
    assert isinstance(rows, fx.Node), f"{node} takes log-probabilities that nobody computed"
    loss, logs = arguments_of(gradient), value_of(rows)
    return (
        loss["self"] is rows
        and loss["reduction"] != _NO_REDUCTION
        and list(gradient.users) == [node]
        and logs.numel() * logs.element_size() >= WORTH_PARTS_NBYTES
        and (logs.ndim, logs.dtype) == (2, dtype)
        and dim in (1, -1)
        and is_known_exact(node.target, logs)
        and have_same_layout(logs, value_of(node))
        and _dies_with(rows, node)
    )


def _dies_with(source: fx.Node, last: fx.Node) -> bool:
    """Made by an op of the step, and touched by nobody after `last`."""
    key = storage_key(value_of(source))
    given = (node for node in source.graph.nodes if node.op in ("placeholder", "get_attr"))
    if not is_op(source) or any(key in storage_keys(node) for node in given):
        return False
    return not any(key in storage_keys(read) for node in _after(last) for read in node.all_input_nodes)


def _after(node: fx.Node) -> Iterator[fx.Node]:
    """The output included: it reads what the step hands out."""
    while node.op != "output":
        node = node.next
        yield node


def _run_in_parts(node: fx.Node) -> None:
    gradient, whole, *how = node.args
    assert isinstance(gradient, fx.Node), f"{node} was not found to be a cross entropy's backward"
    loss = arguments_of(gradient)
    num_rows = shape_of(loss["target"])[0]
    bounds = dict.fromkeys(num_rows * part // NUM_PARTS for part in range(NUM_PARTS + 1))
    with node.graph.inserting_before(node):
        for begin, end in pairwise(bounds):
            rows = call_like(node, aten.slice.Tensor, whole, 0, begin, end)
            of_part: dict[str, Any] = {**loss, "self": rows}
            of_part["target"] = call_like(gradient, aten.slice.Tensor, loss["target"], 0, begin, end)
            part = call_like(gradient, aten.nll_loss_backward.default, *of_part.values())
            call_like(node, aten._log_softmax_backward_data.out, part, rows, *how, out=rows)
        # A copy onto itself does nothing and returns it: a name for what it holds from here on.
        written = node.graph.call_function(aten.copy_.default, (whole, whole))
    copy_meta(node, written)
    node.replace_all_uses_with(written)
    node.graph.erase_node(node)
    gradient.graph.erase_node(gradient)
