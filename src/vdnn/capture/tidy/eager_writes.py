"""Write in place what the eager program wrote in place and its trace did not.

Enters: a joint graph. Leaves: the same graph in which random numbers are drawn into the tensor that was made for them,
and BatchNorm's statistics and counters are updated where they are. The one idea: tracing makes every write a new tensor
and a copy at the end of the step; where nobody else reads the old one, the write itself is the same.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from vdnn.capture.nodes import copy_meta, is_getitem, set_value, value_of
from vdnn.capture.ops.in_place_forms import IN_PLACE_OF
from vdnn.torch_private import is_non_overlapping_and_dense

aten = torch.ops.aten


def draw_random_numbers_in_place(graph: fx.Graph) -> None:
    """`bernoulli(empty_like(x))` was `bernoulli_` in the eager program. The two fill a transposed tensor in different
    orders, so this is no matter of memory: the same generator would drop other elements."""
    for node in list(graph.nodes):
        if node.target is not aten.bernoulli.p:
            continue
        empty = node.args[0]
        if isinstance(empty, fx.Node) and empty.target is aten.empty_like.default and len(empty.users) == 1:
            with graph.inserting_before(node):
                drawn = graph.call_function(aten.bernoulli_.float, node.args, node.kwargs)
            copy_meta(node, drawn)
            set_value(drawn, value_of(empty))
            node.replace_all_uses_with(drawn)
            graph.erase_node(node)


def write_into_strided_parts(graph: fx.Graph) -> None:
    """`sigmoid_` of a part of a tensor was traced as `sigmoid`, with a result laid out as that part is
    (`strided_writes_traced`). Kernels compute a layout with holes row by row and a whole one in a single run, with
    other last bits where a row ends; so it is written where eager mode writes it, or into a copy if the old is read."""
    place = {node: at for at, node in enumerate(graph.nodes)}
    for node in list(graph.nodes):
        into = node.args[0] if node.args else None
        if node.target not in IN_PLACE_OF or not isinstance(into, fx.Node) or not _has_holes_like(into, node):
            continue
        is_read_later = into.op != "call_function" or any(place.get(user, -1) > place[node] for user in into.users)
        with graph.inserting_before(node):
            if is_read_later:
                into = _copied(graph, node, into)
            written = graph.call_function(IN_PLACE_OF[node.target], (into, *node.args[1:]), node.kwargs)
        copy_meta(node, written)
        set_value(written, value_of(into))
        place[written] = place[node]
        node.replace_all_uses_with(written)
        graph.erase_node(node)


def _has_holes_like(into: fx.Node, node: fx.Node) -> bool:
    before, after = value_of(into), value_of(node)
    if not isinstance(before, torch.Tensor) or not isinstance(after, torch.Tensor):
        return False
    is_alike = (before.shape, before.stride(), before.dtype) == (after.shape, after.stride(), after.dtype)
    return is_alike and not is_non_overlapping_and_dense(after)


def _copied(graph: fx.Graph, node: fx.Node, original: fx.Node) -> fx.Node:
    """With its holes."""
    like = value_of(node)
    empty = graph.call_function(
        aten.empty_strided.default,
        (list(like.shape), list(like.stride())),
        {"dtype": like.dtype, "device": like.device},
    )
    copied = graph.call_function(aten.copy_.default, (empty, original))
    for made in (empty, copied):
        copy_meta(node, made)
        set_value(made, like)
    return copied


def update_statistics_in_place(graph: fx.Graph) -> None:
    """`copy_(buffer, f(buffer))` becomes f in place, where nobody else reads the buffer: BatchNorm's statistics and
    counters."""
    for node in list(graph.nodes):
        if node.target is aten._native_batch_norm_legit_functional.default:
            _restore_batch_norm(graph, node)
        elif node.target is aten.copy_.default:
            _fuse_update(graph, node)


def _only_copied_into(result: fx.Node | None, buffer: Any) -> fx.Node | None:
    """The `copy_` that takes `result` into the graph input `buffer`, if that is all that happens to the result."""
    if result is None or not isinstance(buffer, fx.Node) or buffer.op != "placeholder" or len(result.users) != 1:
        return None
    (copy,) = result.users
    is_copy = copy.target is aten.copy_.default and copy.args[0] is buffer and not copy.users
    return copy if is_copy and len(buffer.users) == 2 else None


def _restore_batch_norm(graph: fx.Graph, node: fx.Node) -> None:
    results: dict[Any, fx.Node] = {user.args[1]: user for user in node.users if is_getitem(user)}
    mean_copy = _only_copied_into(results.get(3), node.args[3])
    variance_copy = _only_copied_into(results.get(4), node.args[4])
    if mean_copy is None or variance_copy is None:
        return
    for dead in (mean_copy, variance_copy, results[3], results[4]):
        graph.erase_node(dead)
    with graph.inserting_before(node):
        restored = graph.call_function(aten._native_batch_norm_legit.default, node.args, node.kwargs)
    copy_meta(node, restored)
    set_value(restored, tuple(value_of(node)[:3]))
    node.replace_all_uses_with(restored)
    graph.erase_node(node)


def _fuse_update(graph: fx.Graph, copy: fx.Node) -> None:
    buffer, update = copy.args[0], copy.args[1]
    if not isinstance(update, fx.Node) or update.target not in IN_PLACE_OF or update.args[0] is not buffer:
        return
    if _only_copied_into(update, buffer) is None or value_of(update).dtype != value_of(buffer).dtype:  # type: ignore[arg-type]
        return
    graph.erase_node(copy)
    with graph.inserting_before(update):
        fused = graph.call_function(IN_PLACE_OF[update.target], update.args, update.kwargs)
    copy_meta(update, fused)
    graph.erase_node(update)
