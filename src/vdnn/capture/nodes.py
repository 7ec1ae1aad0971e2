"""The one reader of `fx.Node.meta`: what PyTorch's tracers wrote there, as plain answers.

Enters: nodes of a joint forward+backward graph made by AOTAutograd. Leaves: their fake tensors, their storages, their
phase, the module they came from. Everything downstream asks here, so a change in PyTorch's metadata is a change in this
file.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Hashable, Iterator
from typing import Any

import torch
from torch import fx

from vdnn.capture.ops.traits import traits_of
from vdnn.ir import Phase, Trait
from vdnn.torch_private import FakeTensor, OpOverload, schema_of, storage_id

StorageKey = Hashable

_NEVER_A_VIEW = frozenset({Trait.IN_PLACE, Trait.MUST_KEEP})

_READ_LATER = frozenset({"val", "partitioner_tag", "desc", "saved_tensor_with_no_vc_check"})
"""What is read of a node after it was lowered: when another plan cuts the graph again."""

_DYNAMO_ROOT = re.compile(r"^(.*(__self__|cell_contents|closure__\[\d+\])|[LG]\['[^']*'\]|self)\.?")
"""Dynamo writes module paths from the frame on: L['plain'].__self__.layer1 or L['self'].layer1. We want layer1."""


def value_of(node: fx.Node) -> Any:
    """What the tracer saw this node return: a fake tensor, a tuple of them with None for holes, a number, or None."""
    return node.meta.get("val")


def set_value(node: fx.Node, value: Any) -> None:
    node.meta["val"] = value


def tensors_of(node: fx.Node) -> tuple[torch.Tensor | None, ...]:
    """The tensors a node returns, by position; None where it returns something else.

    A backward op leaves out the gradients that its `output_mask` does not ask for; the tracer's version may not."""
    value = value_of(node)
    if not isinstance(value, (tuple, list)):
        return (value if isinstance(value, torch.Tensor) else None,)
    mask = _output_mask(node) or [True] * len(value)
    return tuple(
        item if isinstance(item, torch.Tensor) and wanted else None for item, wanted in zip(value, mask, strict=True)
    )


def _output_mask(node: fx.Node) -> list[bool] | None:
    if not isinstance(node.target, OpOverload) or not node.args:
        return None
    last, mask = schema_of(node.target).arguments[-1].name, node.args[-1]  # where every op that has a mask takes it
    return [bool(wanted) for wanted in mask] if last == "output_mask" and isinstance(mask, (list, tuple)) else None


def tensor_of(node: fx.Node) -> torch.Tensor | None:
    value = value_of(node)
    return value if isinstance(value, torch.Tensor) else None


def shape_of(node: fx.Node) -> torch.Size:
    """Of a node that is known to return one tensor."""
    shape: torch.Size = value_of(node).shape
    return shape


def op_of(node: fx.Node) -> OpOverload:
    """Of a node that is known to call one."""
    assert isinstance(node.target, OpOverload), f"{node} calls {node.target}, which has no schema"
    return node.target


def arguments_of(node: fx.Node) -> dict[str, Any]:
    """The arguments of a call by the names of the op's schema, defaults filled in."""
    named: dict[str, Any] = {}
    for position, argument in enumerate(schema_of(op_of(node)).arguments):
        if position < len(node.args):
            named[argument.name] = node.args[position]
        elif argument.name in node.kwargs:
            named[argument.name] = node.kwargs[argument.name]
        elif argument.has_default_value():
            named[argument.name] = argument.default_value
    return named


def storage_key(tensor: torch.Tensor) -> StorageKey:
    """Equal for two tensors exactly if they share memory. Fake tensors of views share their fake storage, so this sees
    all aliases."""
    return storage_id(tensor.untyped_storage())


def storage_keys(node: fx.Node) -> Iterator[StorageKey]:
    for tensor in tensors_of(node):
        if tensor is not None:
            yield storage_key(tensor)


def is_getitem(node: fx.Node) -> bool:
    return node.op == "call_function" and node.target is operator.getitem


def is_op(node: fx.Node) -> bool:
    """Does something at run time. `getitem` only names one of several results."""
    return node.op == "call_function" and not is_getitem(node)


def is_view(node: fx.Node) -> bool:
    """A node whose results are looks at its inputs' storages and that computes nothing. Decided by aliasing, not by
    name."""
    if is_getitem(node):
        return is_view(node.all_input_nodes[0])
    if node.op != "call_function" or _NEVER_A_VIEW & traits_of(node.target):
        return False
    sources = {key for source in node.all_input_nodes for key in storage_keys(source)}
    results = list(storage_keys(node))
    return bool(results) and all(key in sources for key in results)


def phase_of(node: fx.Node) -> Phase | None:
    """The phase AOTAutograd recorded while tracing; None for nodes it did not tag."""
    tag = node.meta.get("partitioner_tag")
    if tag in ("is_forward", "must_be_in_forward"):
        return Phase.FORWARD
    if tag in ("is_backward", "must_be_in_backward"):
        return Phase.BACKWARD
    return None


def set_phase(node: fx.Node, phase: Phase) -> None:
    node.meta["partitioner_tag"] = f"is_{phase}"


def is_tangent(node: fx.Node) -> bool:
    return node.op == "placeholder" and phase_of(node) is Phase.BACKWARD


def copy_meta(source: fx.Node, target: fx.Node) -> None:
    target.meta.update(source.meta)


def descriptor_of(placeholder: fx.Node) -> Any:
    """AOTAutograd's description of an input: a parameter with its name, a buffer, a plain argument with its position, a
    tangent."""
    return placeholder.meta.get("desc")


def output_descriptors(output: fx.Node) -> list[Any]:
    return list(output.meta.get("desc") or [])


def _deepest_module(stack: Any) -> str:
    if not stack:
        return ""
    path = str(list(stack.values())[-1][0])
    return _DYNAMO_ROOT.sub("", path).replace("._modules", "")


def module_paths(graph: fx.Graph) -> dict[fx.Node, str]:
    """The module each node came from. A backward node belongs to the module of the forward node with its sequence
    number."""
    by_sequence: dict[int, str] = {}
    paths: dict[fx.Node, str] = {}
    for node in graph.nodes:
        sequence = node.meta.get("seq_nr", -1)
        path = _deepest_module(node.meta.get("nn_module_stack"))
        if phase_of(node) is Phase.FORWARD:
            if node.op == "call_function" and path:
                by_sequence.setdefault(sequence, path)
        else:
            path = _deepest_module(node.meta.get("fwd_nn_module_stack")) or by_sequence.get(sequence, "")
        paths[node] = path
    return paths


def forget_origins(graph: fx.Graph) -> None:
    """Let go of what says where its nodes come from (lines, modules, the graph before): most of what a node holds, and
    read by nobody once ops have their names."""
    for node in graph.nodes:
        node.meta = {name: value for name, value in node.meta.items() if name in _READ_LATER}


def set_output_descriptors(output: fx.Node, descriptors: list[Any]) -> None:
    output.meta["desc"] = descriptors


def is_unchecked_save(node: fx.Node) -> bool:
    """Stashed by a user's autograd.Function as an attribute, which eager does not check for later in-place changes."""
    return bool(node.meta.get("saved_tensor_with_no_vc_check", False))


def fake_mode_of(graph: fx.Graph) -> Any:
    """The mode under which the graph's fake tensors were made."""
    for node in graph.nodes:
        for tensor in tensors_of(node):
            if isinstance(tensor, FakeTensor):
                return tensor.fake_mode
    raise AssertionError("a traced graph without a single tensor cannot be split into forward and backward")


def count_forward_outputs(graph: fx.Graph) -> int:
    """How many outputs of a joint graph belong to the forward: one gradient (or None) per input follows them.

    A graph without tangents has no backward, and all its outputs are the forward's."""
    placeholders = graph.find_nodes(op="placeholder")
    tangents = sum(is_tangent(node) for node in placeholders)
    outputs: Any = graph.output_node().args[0]
    return len(outputs) - (len(placeholders) - tangents) if tangents else len(outputs)


def dynamo_source(placeholder: fx.Node) -> str:
    """Where Dynamo found an input, as a Python expression over the frame; empty when it did not say."""
    argument = placeholder.meta.get("grapharg")
    source = getattr(argument, "source", None)
    name = getattr(source, "name", "")
    return name() if callable(name) else str(name)
