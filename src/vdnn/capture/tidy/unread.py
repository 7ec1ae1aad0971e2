"""Take out what the tracer recorded and nobody reads.

Enters: a joint graph. Leaves: the same graph without calls that only autograd needed, and without arguments that an op
takes and does not look at. What no op reads, no plan has to keep.
"""

from __future__ import annotations

import torch
from torch import fx

from vdnn.capture.nodes import arguments_of, is_op
from vdnn.capture.ops.traits import needs_of
from vdnn.ir import Need
from vdnn.torch_private import OpOverload, schema_of

aten = torch.ops.aten


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
