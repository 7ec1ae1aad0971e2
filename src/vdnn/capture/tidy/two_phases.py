"""Forward first, then backward, with nothing between them but whole storages.

Enters: a joint graph in the order of its trace. Leaves: the same graph in execution order: every forward node before
every backward node, results unpacked where they are made, inputs as forward saw them, and views taken in the phase that
reads them. The one idea: what crosses from forward to backward is then a list of storages, which is what a plan decides
about and what `rewrite/halves.py` cuts through.
"""

from __future__ import annotations

import torch
from torch import fx

from vdnn.capture.nodes import copy_meta, is_getitem, is_view, phase_of, set_phase, set_value, value_of
from vdnn.ir import Phase

aten = torch.ops.aten


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
