"""What the inputs of a joint graph are to the model: which parameter, which buffer, which argument.

Enters: a joint graph whose placeholders carry AOTAutograd's descriptors and, when Dynamo made the graph, Dynamo's own
inputs. Leaves: an `InputInfo` per placeholder. An input that nobody can name is a plain input, which is the safe
reading: it persists and is never moved.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from vdnn.capture.lower import InputInfo
from vdnn.capture.nodes import descriptor_of, dynamo_source, is_tangent, tensor_of
from vdnn.hardware.where import where_of
from vdnn.ir import Role
from vdnn.torch_private import BufferAOTInput, ParamAOTInput, PlainAOTInput

_STATE_KEY = re.compile(r"_(?:modules|parameters|buffers)\['([^']+)'\]")
"""The keys on the way from a root module to a parameter, as Dynamo's sources spell it:
L['self']._modules['c']._parameters['weight']."""


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


def where_of_step(graph: fx.Graph, plain: Sequence[InputInfo]) -> torch.device:
    """On which device: that of its parameters, buffers and arguments. `InvalidInput` where they are of several."""
    infos = describe_inputs(graph, plain)
    given = [node for node in infos if not is_tangent(node)]
    return where_of((_said(node, infos), tensor) for node in given if (tensor := tensor_of(node)) is not None)


def _said(node: fx.Node, infos: Mapping[fx.Node, InputInfo]) -> str:
    """An argument that nobody has a name for, by its number."""
    name, descriptor = infos[node].name, descriptor_of(node)
    return f"argument {descriptor.idx}" if name == node.name and isinstance(descriptor, PlainAOTInput) else name


def dynamo_inputs(module: fx.GraphModule, example_inputs: Sequence[Any]) -> list[InputInfo]:
    """What Dynamo lifted to arguments, in their order: parameters and buffers by their names in the model, the rest as
    inputs."""
    placeholders = module.graph.find_nodes(op="placeholder")
    return [_dynamo_input(node, example) for node, example in zip(placeholders, example_inputs, strict=True)]


def _dynamo_input(node: fx.Node, example: Any) -> InputInfo:
    source = dynamo_source(node)
    name = ".".join(_STATE_KEY.findall(source)) or node.name
    if isinstance(example, torch.nn.Parameter):
        return InputInfo(name, Role.PARAMETER)
    return InputInfo(name, Role.BUFFER if "_buffers[" in source else Role.INPUT)
