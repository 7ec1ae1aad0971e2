"""A copy of a part of a tensor takes the memory of that part.

Enters: a joint graph. Leaves: the same graph in which `aten.copy` onto a part of a storage is a new tensor, laid out as
that part, and a write into it. The kernel of `aten.copy` would copy the whole storage behind the part, and its result
would begin somewhere inside of it, where the trace has it begin at its first byte.
"""

from __future__ import annotations

import torch
from torch import fx

from vdnn.capture.nodes import set_value, tensor_of, value_of
from vdnn.capture.ops.information import fills_its_storage
from vdnn.capture.tidy.in_place import call_like

aten = torch.ops.aten


def copy_what_is_shown(graph: fx.Graph) -> None:
    for node in graph.find_nodes(op="call_function", target=aten.copy.default):
        onto, result = tensor_of(node.args[0]), tensor_of(node)
        if onto is None or result is None or fills_its_storage(onto) or result.stride() != onto.stride():
            continue
        with graph.inserting_before(node):
            options = {"dtype": result.dtype, "device": result.device}
            room = call_like(node, aten.empty_strided.default, list(result.shape), list(result.stride()), **options)
            written = call_like(node, aten.copy_.default, room, node.args[1])
        set_value(written, value_of(node))  # views of it were traced from there
        node.replace_all_uses_with(written)
        graph.erase_node(node)
