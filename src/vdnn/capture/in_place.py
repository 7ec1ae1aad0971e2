"""Write a result over an input that nobody will read again, where that is exact.

Enters: a joint graph in execution order. Leaves: the same graph in which elementwise ops whose input dies with them
reuse its memory: ReLU after a convolution or BatchNorm, residual additions, ReLU's backward, sums of gradients. That is
what eager code asks for with `inplace=True` and what autograd does when it accumulates; here it follows from liveness
alone.

Exact because every op below computes each element from the elements at the same position, with the same kernel in both
forms.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import fx

from vdnn.capture.nodes import StorageKey, copy_meta, is_op, is_tangent, phase_of, storage_key, storage_keys, tensor_of
from vdnn.ir import Phase

aten = torch.ops.aten

IN_PLACE_OF = {
    aten.relu.default: aten.relu_.default,
    aten.add.Tensor: aten.add_.Tensor,
    aten.add.Scalar: aten.add_.Scalar,
    aten.sub.Tensor: aten.sub_.Tensor,
    aten.mul.Tensor: aten.mul_.Tensor,
    aten.mul.Scalar: aten.mul_.Scalar,
    aten.div.Tensor: aten.div_.Tensor,
    aten.div.Scalar: aten.div_.Scalar,
    aten.neg.default: aten.neg_.default,
    aten.sigmoid.default: aten.sigmoid_.default,
    aten.tanh.default: aten.tanh_.default,
    aten.hardtanh.default: aten.hardtanh_.default,
    aten.leaky_relu.default: aten.leaky_relu_.default,
}
"""Ops that may write over their first argument."""

OUT_OF = {
    aten.add.Tensor: (aten.add.out, "out"),
    aten.mul.Tensor: (aten.mul.out, "out"),
    aten.threshold_backward.default: (aten.threshold_backward.grad_input, "grad_input"),
    aten.sigmoid_backward.default: (aten.sigmoid_backward.grad_input, "grad_input"),
    aten.tanh_backward.default: (aten.tanh_backward.grad_input, "grad_input"),
    aten.leaky_relu_backward.default: (aten.leaky_relu_backward.grad_input, "grad_input"),
    aten.hardtanh_backward.default: (aten.hardtanh_backward.grad_input, "grad_input"),
}
"""Ops that may write over any of their arguments, through their form with an output argument."""


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


def _victims(node: fx.Node, position: int, state: _Liveness) -> Iterator[fx.Node]:
    """Inputs that `node` may overwrite: dead after it, of its phase, of exactly its layout, and read through no other
    alias."""
    if node.target in OUT_OF:
        candidates = [arg for arg in node.args if isinstance(arg, fx.Node)]
    elif node.target in IN_PLACE_OF and isinstance(node.args[0], fx.Node):
        candidates = [node.args[0]]
    else:
        return
    result = tensor_of(node)
    for candidate in candidates:
        tensor = tensor_of(candidate)
        if result is None or tensor is None or is_tangent(candidate) or not _same_layout(tensor, result):
            continue
        key = state.resolve(storage_key(tensor))
        is_dead = state.last_touch.get(key) == position
        is_ours = state.born_in.get(key) is (phase_of(node) or Phase.FORWARD)
        aliases = [s for s in node.all_input_nodes if any(state.resolve(k) == key for k in storage_keys(s))]
        if is_dead and is_ours and aliases == [candidate]:
            yield candidate


def _same_layout(victim: torch.Tensor, result: torch.Tensor) -> bool:
    """The victim is its whole storage, laid out as the result would be: strides are part of the result."""
    whole = (
        victim.untyped_storage().nbytes() == victim.numel() * victim.element_size() == result.untyped_storage().nbytes()
    )
    alike = victim.dtype == result.dtype and victim.shape == result.shape and victim.stride() == result.stride()
    return whole and alike and victim.storage_offset() == 0


def _rewrite(graph: fx.Graph, node: fx.Node, victim: fx.Node) -> None:
    with graph.inserting_before(node):
        if node.target in IN_PLACE_OF and node.args[0] is victim:
            rewritten = graph.call_function(IN_PLACE_OF[node.target], node.args, node.kwargs)
        else:
            target, out = OUT_OF[node.target]  # type: ignore[index]
            rewritten = graph.call_function(target, node.args, {**node.kwargs, out: victim})
    copy_meta(node, rewritten)
    node.replace_all_uses_with(rewritten)
    graph.erase_node(node)
