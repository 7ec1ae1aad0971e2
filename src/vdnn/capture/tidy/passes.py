"""Make a traced joint graph say what eager PyTorch does, in two clean phases.

Enters: the functional joint graph of AOTAutograd. Leaves: the same graph (changed in place) with every forward node
before every backward node, nothing recorded for its own sake, and the in-place writes of the eager program back in
place.

The one idea: tracing makes programs functional, and a functional program pays for what eager gets free: a copy of every
BatchNorm statistic, `detach` calls, a second buffer for every in-place ReLU. Each pass below removes one such cost and
changes no bit of any result. All passes are linear in the number of nodes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from vdnn.capture.nodes import (
    arguments_of,
    copy_meta,
    is_getitem,
    is_op,
    is_view,
    phase_of,
    set_phase,
    set_value,
    value_of,
)
from vdnn.capture.ops.traits import needs_of
from vdnn.capture.tidy.in_place import IN_PLACE_OF, write_into_dead_inputs
from vdnn.capture.tidy.loss_backward import write_over_log_probabilities
from vdnn.ir import Need, Phase
from vdnn.torch_private import OpOverload, schema_of

aten = torch.ops.aten


def tidy(joint: fx.GraphModule) -> None:
    """All passes, in the one order in which each finds what the one before it left.

    The module's code is not generated anew: what runs is cut out of the graph, and code for 10^4 layers takes seconds.
    """
    graph = joint.graph
    remove_detaches(graph)
    forget_unread_arguments(graph)
    draw_random_numbers_in_place(graph)
    update_statistics_in_place(graph)
    separate_phases(graph)
    keep_getitems_with_their_op(graph)
    protect_mutated_inputs(graph)
    take_views_in_backward(graph)
    write_over_log_probabilities(graph)
    write_into_dead_inputs(graph)


def remove_detaches(graph: fx.Graph) -> None:
    """`detach` and `alias` only matter to autograd, which is done with this graph. Those that are outputs stay: two
    outputs must be two tensors."""
    for node in graph.nodes:
        if node.target in (aten.detach.default, aten.alias.default) and not any(u.op == "output" for u in node.users):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)


def forget_unread_arguments(graph: fx.Graph) -> None:
    """An optional tensor that an op does not look at becomes None, so that nobody keeps it for that op."""
    for node in graph.nodes:
        if not (is_op(node) and isinstance(node.target, OpOverload)):
            continue
        needs = needs_of(node.target, arguments_of(node))
        for position, argument in enumerate(schema_of(node.target).arguments[: len(node.args)]):
            is_optional = isinstance(argument.type, torch.OptionalType)
            if needs.get(argument.name) is Need.NOTHING and is_optional and isinstance(node.args[position], fx.Node):
                node.update_arg(position, None)


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


def separate_phases(graph: fx.Graph) -> None:
    """Forward nodes, then backward nodes. Updates of inputs, which the tracer leaves at the very end, close the
    forward."""
    phases: dict[fx.Node, Phase] = {}
    for node in graph.nodes:
        if node.op == "output":
            continue
        phase = phase_of(node)
        if phase is None:  # not tagged: with what it depends on, else with the forward
            depends_on_backward = any(phases.get(source) is Phase.BACKWARD for source in node.all_input_nodes)
            phase = Phase.BACKWARD if depends_on_backward else Phase.FORWARD
            set_phase(node, phase)
        phases[node] = phase
    first_backward: fx.Node | None = None
    for node in list(graph.nodes):
        if node.op in ("placeholder", "output"):
            continue
        if phases[node] is Phase.BACKWARD:
            first_backward = first_backward or node
        elif first_backward is not None:
            first_backward.prepend(node)


def keep_getitems_with_their_op(graph: fx.Graph) -> None:
    """Results are unpacked at once: a tuple that lives on would keep the results that nobody uses."""
    for node in list(graph.nodes):
        if is_getitem(node):
            source = node.all_input_nodes[0]
            place = source
            while is_getitem(place.next) and place.next.all_input_nodes[0] is source and place.next is not node:
                place = place.next
            if place.next is not node:
                place.append(node)


def protect_mutated_inputs(graph: fx.Graph) -> None:
    """Backward must see an input as forward saw it, although forward overwrites it at its end: it gets a copy made
    before."""
    for node in list(graph.nodes):
        if (
            node.target is not aten.copy_.default
            or not isinstance(node.args[0], fx.Node)
            or node.args[0].op != "placeholder"
        ):
            continue
        buffer = node.args[0]
        late = [user for user in buffer.users if phase_of(user) is Phase.BACKWARD]
        if late and phase_of(node) is Phase.FORWARD:
            with graph.inserting_before(node):
                before = graph.call_function(aten.clone.default, (buffer,))
            copy_meta(node, before)
            buffer_value = value_of(buffer)
            with buffer_value.fake_mode:
                set_value(before, buffer_value.clone())
            for user in late:
                user.replace_input_with(buffer, before)


def take_views_in_backward(graph: fx.Graph) -> None:
    """A backward node that reads a view made in forward reads the same view made again in backward.

    Forward then hands over whole storages, each once, and a plan that moves a storage has no views left behind to think
    of."""
    again: dict[fx.Node, fx.Node] = {}
    for node in list(graph.nodes):
        if node.op == "call_function" and phase_of(node) is Phase.BACKWARD:
            for source in node.all_input_nodes:
                if phase_of(source) is Phase.FORWARD and is_view(source):
                    node.replace_input_with(source, _view_again(graph, source, node, again))
    for node in reversed(list(graph.nodes)):
        if phase_of(node) is Phase.FORWARD and not node.users and is_view(node):
            graph.erase_node(node)


def _view_again(graph: fx.Graph, view: fx.Node, before: fx.Node, again: dict[fx.Node, fx.Node]) -> fx.Node:
    if view not in again:
        sources = {
            source: _view_again(graph, source, before, again)
            for source in view.all_input_nodes
            if is_view(source) and phase_of(source) is Phase.FORWARD
        }
        with graph.inserting_before(before):
            copy = graph.node_copy(view, lambda source: sources.get(source, source))
        set_phase(copy, Phase.BACKWARD)
        again[view] = copy
    return again[view]
