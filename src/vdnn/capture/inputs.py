"""What the inputs of a joint graph are to the model: which parameter, which buffer, which argument.

Enters: a joint graph whose placeholders carry AOTAutograd's descriptors and, when Dynamo made the graph, Dynamo's own inputs. Leaves: an
`InputInfo` per placeholder. An input that nobody can name is a plain input, which is the safe reading: it persists and is never moved.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch._functorch._aot_autograd.descriptors import BufferAOTInput, ParamAOTInput, PlainAOTInput

from vdnn.capture.lower import InputInfo
from vdnn.capture.nodes import descriptor_of, is_tangent
from vdnn.ir import Role

_DYNAMO_NAME = re.compile(r"^[lLgG]_(self|[a-zA-Z0-9]+)_(?=modules_|parameters_|buffers_)")


def describe_inputs(graph: fx.Graph, plain: Sequence[InputInfo]) -> dict[fx.Node, InputInfo]:
    """By placeholder. `plain` describes AOTAutograd's plain inputs by position, as far as it reaches."""
    infos: dict[fx.Node, InputInfo] = {}
    for node in graph.find_nodes(op="placeholder"):
        descriptor = descriptor_of(node)
        if is_tangent(node):
            infos[node] = InputInfo(node.name, Role.GRADIENT_MAP)
        elif isinstance(descriptor, ParamAOTInput):
            infos[node] = InputInfo(descriptor.target, Role.PARAMETER)
        elif isinstance(descriptor, BufferAOTInput):
            infos[node] = InputInfo(descriptor.target, Role.BUFFER)
        elif isinstance(descriptor, PlainAOTInput) and descriptor.idx < len(plain):
            infos[node] = plain[descriptor.idx]
        else:
            infos[node] = InputInfo(node.name, Role.INPUT)
    return infos


def dynamo_inputs(module: fx.GraphModule, example_inputs: Sequence[Any]) -> list[InputInfo]:
    """What Dynamo lifted to arguments, in their order: parameters and buffers by their names in the model, the rest as inputs."""
    names = module.meta.get("dynamo_flat_name_to_original_fqn", {})
    placeholders = module.graph.find_nodes(op="placeholder")
    return [_dynamo_input(node, example, names) for node, example in zip(placeholders, example_inputs, strict=True)]


def _dynamo_input(node: fx.Node, example: Any, names: dict[str, str]) -> InputInfo:
    name = names.get(str(node.target)) or _readable(node.name)
    if isinstance(example, torch.nn.Parameter):
        return InputInfo(name, Role.PARAMETER)
    is_buffer = "_buffers_" in node.name
    return InputInfo(name, Role.BUFFER if is_buffer else Role.INPUT)


def _readable(name: str) -> str:
    """l_self_modules_c_parameters_weight_ → c.weight, as far as Dynamo's flattening of names can be undone."""
    path = _DYNAMO_NAME.sub("", name).strip("_")
    for word in ("modules_", "parameters_", "buffers_"):
        path = path.replace(f"_{word}", ".").removeprefix(word)
    return re.sub(r"^[lL]_", "", path)
