"""Write a result over an input that nobody will read again, where that is exact.

Enters: a joint graph in execution order. Leaves: the same graph in which ops whose input dies with them reuse its
memory: ReLU after a convolution or BatchNorm, residual additions, softmax over its scores, the backwards of both, sums
of gradients. That is what eager code asks for with `inplace=True` and what autograd does when it accumulates; here it
follows from liveness alone.

Which ops may, and why no bit changes, is in `capture/ops/in_place_forms.py`. Which input may go is decided here: it
dies with the op, it was made in the op's phase, it is the whole of its storage, and it is laid out as the result would
be. A gradient that the caller passed in is the caller's. What forward made stays as it is in backward, because a
retained graph reads it again; the one exception is `capture/tidy/loss_backward.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from vdnn.capture.nodes import (
    StorageKey,
    copy_meta,
    is_op,
    is_tangent,
    is_view,
    op_of,
    phase_of,
    set_value,
    storage_key,
    storage_keys,
    tensor_of,
    value_of,
)
from vdnn.capture.ops.in_place_forms import IN_PLACE_OF, OUT_OF, OVER_SECOND, PART_OF, is_known_exact
from vdnn.ir import Phase
from vdnn.torch_private import tree_leaves

aten = torch.ops.aten

_OVER_FIRST = {*IN_PLACE_OF, *PART_OF, aten.clone.default}


@dataclass
class _Liveness:
    """Which storage a node's result really lives in as reuse merges storages, when each is touched last, and where it
    was born."""

    merged: dict[StorageKey, StorageKey] = field(default_factory=dict)
    last_touch: dict[StorageKey, int] = field(default_factory=dict)
    born_in: dict[StorageKey, Phase] = field(default_factory=dict)

    def resolve(self, key: StorageKey) -> StorageKey:
        while key in self.merged:
            key = self.merged[key]
        return key

    def merge(self, result: StorageKey, victim: StorageKey) -> None:
        self.last_touch[victim] = self.last_touch[result]
        self.merged[result] = victim


def _liveness(graph: fx.Graph) -> _Liveness:
    state = _Liveness()
    for position, node in enumerate(graph.nodes):
        for source in node.all_input_nodes:
            for key in storage_keys(source):
                # An output is read after the graph has ended; so is an input, whichever view of it was read last.
                touched = 2**62 if node.op == "output" else position
                state.last_touch[key] = max(touched, state.last_touch.get(key, -1))
        for key in storage_keys(node):
            state.last_touch[key] = max(position, state.last_touch.get(key, -1))
            if is_op(node):
                state.born_in.setdefault(key, phase_of(node) or Phase.FORWARD)
            else:
                state.last_touch[key] = 2**62 if node.op in ("placeholder", "get_attr") else state.last_touch[key]
    return state


def write_into_dead_inputs(graph: fx.Graph) -> None:
    """Turn every op that may into its in-place form over an input whose storage dies with it."""
    _open_safe_softmax(graph)
    _assign_directly(graph)
    state = _liveness(graph)
    for position, node in enumerate(list(graph.nodes)):
        victim = next(_victims(node, position, state), None) if is_op(node) else None
        result = tensor_of(node)
        if victim is None or result is None:
            continue
        victim_tensor = tensor_of(victim)
        assert victim_tensor is not None, f"{victim} was chosen as a victim without being a tensor"
        state.merge(storage_key(result), state.resolve(storage_key(victim_tensor)))
        _rewrite(graph, node, victim)
    _erase_unread(graph)


def _victims(node: fx.Node, position: int, state: _Liveness) -> Iterator[fx.Node]:
    """Inputs that `node` may overwrite: dead after it, of its phase, of exactly its layout, and read through no other
    alias."""
    if node.target in OUT_OF:
        candidates = [arg for arg in node.args if isinstance(arg, fx.Node)]
    elif node.target in _OVER_FIRST and isinstance(node.args[0], fx.Node):
        candidates = [node.args[0]]
    elif node.target in OVER_SECOND and isinstance(node.args[1], fx.Node):
        candidates = [node.args[1]]
    else:
        return
    result = tensor_of(node)
    if result is None or not is_known_exact(node.target, result):
        return
    for candidate in candidates:
        tensor = tensor_of(candidate)
        if tensor is None or is_tangent(candidate) or not have_same_layout(tensor, result):
            continue
        key = state.resolve(storage_key(tensor))
        is_dead = state.last_touch.get(key) == position
        is_ours = state.born_in.get(key) is (phase_of(node) or Phase.FORWARD)
        aliases = [s for s in node.all_input_nodes if any(state.resolve(k) == key for k in storage_keys(s))]
        if is_dead and is_ours and aliases == [candidate] and _may_be_written(node, candidate):
            yield candidate


def _may_be_written(node: fx.Node, candidate: fx.Node) -> bool:
    """Elementwise ops read an element before they write it, however often it is given. Others (`index_add(h, 0, i, h)`)
    must not read elsewhere what they write."""
    if torch.Tag.pointwise in op_of(node).tags:
        return True
    return sum(given is candidate for given in tree_leaves((node.args, node.kwargs))) == 1


def have_same_layout(victim: torch.Tensor, result: torch.Tensor) -> bool:
    """The victim is its whole storage, laid out as the result would be: strides are part of the result."""
    whole = (
        victim.untyped_storage().nbytes() == victim.numel() * victim.element_size() == result.untyped_storage().nbytes()
    )
    alike = victim.dtype == result.dtype and victim.shape == result.shape and victim.stride() == result.stride()
    return whole and alike and victim.storage_offset() == 0


def _rewrite(graph: fx.Graph, node: fx.Node, victim: fx.Node) -> None:
    with graph.inserting_before(node):
        rewritten = _in_place(graph, node, victim)
    copy_meta(node, rewritten)
    node.replace_all_uses_with(rewritten)
    graph.erase_node(node)


def _in_place(graph: fx.Graph, node: fx.Node, victim: fx.Node) -> fx.Node:
    if node.target in IN_PLACE_OF and node.args[0] is victim:
        return graph.call_function(IN_PLACE_OF[node.target], node.args, node.kwargs)
    if node.target in OUT_OF:
        target, out = OUT_OF[node.target]
        return graph.call_function(target, node.args, {**node.kwargs, out: victim})
    if node.target in PART_OF:
        part = call_like(node, PART_OF[node.target], victim, *node.args[2:], **node.kwargs)
        call_like(node, aten.copy_.default, part, node.args[1])
    # A copy of the victim onto itself does nothing and returns it: a name for what it holds from here on.
    return graph.call_function(aten.copy_.default, (victim, victim))


def _open_safe_softmax(graph: fx.Graph) -> None:
    """Spell out what the kernel of `_safe_softmax` does (rows of -inf alone become 0): its steps can reuse the scores,
    the kernel makes a second tensor of their size."""
    for node in graph.find_nodes(op="call_function", target=aten._safe_softmax.default, sort=True):
        scores, dim = node.args[:2]
        if value_of(scores).dtype != value_of(node).dtype:  # a cast comes first, into memory of its own
            continue
        with graph.inserting_before(node):
            is_masked = call_like(node, aten.isneginf.default, scores)
            is_masked_row = call_like(node, aten.all.dim, is_masked, dim, True)
            zero = call_like(node, aten.scalar_tensor.default, 0.0, dtype=value_of(node).dtype)
            shares = call_like(node, aten._softmax.default, scores, dim, False)
            opened = call_like(node, aten.where.self, is_masked_row, zero, shares)
        node.replace_all_uses_with(opened)
        graph.erase_node(node)


def _assign_directly(graph: fx.Graph) -> None:
    """Traced, `y[:, 0] = x` copies x into a copy of that part, whose kernel copies all of y, and puts the copy into y.
    Putting x into y itself gives the same bits, if x is no input, which the graph may have changed in between."""
    inputs = {key for node in graph.nodes if node.op in ("placeholder", "get_attr") for key in storage_keys(node)}
    for node in graph.nodes:
        copied = node.args[1] if node.target in PART_OF or node.target is aten.copy_.default else None
        if isinstance(copied, fx.Node) and copied.target is aten.copy.default:
            source, result = value_of(copied.args[1]), value_of(copied)  # type: ignore[arg-type]
            if (source.shape, source.dtype) == (result.shape, result.dtype) and storage_key(source) not in inputs:
                node.update_arg(1, copied.args[1])
    _erase_unread(graph)


def _erase_unread(graph: fx.Graph) -> None:
    """Views, copies and empty tensors that lost their last reader. Nothing else is ever dropped here."""
    made_for_readers = (aten.copy.default, aten.new_empty_strided.default, aten.empty_like.default)
    for node in reversed(graph.nodes):
        if not node.users and (node.target in made_for_readers or is_view(node)):
            graph.erase_node(node)


def call_like(node: fx.Node, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
    """A call in the place of `node`: its phase, its module, and what the tracer would have seen it return."""
    call = node.graph.call_function(target, args, kwargs)
    copy_meta(node, call)
    with value_of(node).fake_mode:
        set_value(call, target(*fx.map_arg(args, value_of), **fx.map_arg(kwargs, value_of)))
    return call
