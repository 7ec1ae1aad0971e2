"""Cut a planned joint graph into the two programs that run: forward, and later backward.

Enters: a tidy joint graph, its lowering, and a plan. Leaves: two graph modules in the calling convention of AOTAutograd
(forward returns its outputs and then what backward needs; backward takes that and then the tangents) and, for every
node, the step it runs.

The one idea: after `capture/tidy.py` the joint graph is in execution order with whole storages crossing from forward to
backward, so cutting is one walk over the nodes. Linear in their number, where PyTorch's own partitioner is quadratic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._functorch._aot_autograd.descriptors import SavedForBackwardsAOTOutput

from vdnn.capture.lower import Lowered
from vdnn.capture.nodes import (
    fake_mode_of,
    is_tangent,
    is_unchecked_save,
    output_descriptors,
    phase_of,
    set_output_descriptors,
    set_phase,
    set_value,
)
from vdnn.errors import Unsupported
from vdnn.ir import Phase
from vdnn.plan.actions import Keep
from vdnn.plan.plan import Plan
from vdnn.runtime.steps import open_handle

HANDLE = "vdnn_handle"


@dataclass(frozen=True)
class Half:
    """One of the two programs. `step_of` gives the step of every node that runs one."""

    module: fx.GraphModule
    step_of: Mapping[fx.Node, int]

    @property
    def handle_position(self) -> int:
        """Where the handle stands among backward's arguments."""
        names = [node.name for node in self.module.graph.find_nodes(op="placeholder")]
        return names.index(HANDLE)

    @property
    def num_saved(self) -> int:
        """How many of backward's arguments come from forward; the tangents follow."""
        return sum(
            not is_tangent(node) or node.name == HANDLE for node in self.module.graph.find_nodes(op="placeholder")
        )


def cut(joint: fx.GraphModule, lowered: Lowered, plan: Plan, num_forward_outputs: int) -> tuple[Half, Half]:
    """Forward and backward as the plan says."""
    for decision in plan.decisions:
        if not isinstance(decision.action, Keep):
            raise Unsupported(
                f"the plan of strategy {plan.strategy!r} wants to {decision.action.kind} storage {decision.storage},"
                " and this version runs plans that keep everything. Use strategy='keep-all'."
            )
    outputs: Sequence[Any] = joint.graph.output_node().args[0]  # type: ignore[assignment]
    gradients = outputs[num_forward_outputs:]
    saved = _saved_nodes(joint.graph, gradients)
    steps = {node: step for step, node in enumerate(lowered.nodes)}
    return _forward(joint, saved, outputs[:num_forward_outputs], steps), _backward(joint, saved, gradients, steps)


def _saved_nodes(graph: fx.Graph, gradients: Sequence[Any]) -> list[fx.Node | None]:
    """What crosses from forward to backward, in order of first reading. None stands for the handle.

    What must skip autograd's version check comes last: AOTAutograd counts those from the end."""
    readers = [node.all_input_nodes for node in graph.nodes if node.op == "call_function" and not _is_forward(node)]
    handed_out = [node for node in gradients if isinstance(node, fx.Node)]
    crossing = dict.fromkeys(node for nodes in (*readers, handed_out) for node in nodes if _crosses(node))
    checked = [node for node in crossing if not is_unchecked_save(node)]
    return [*checked, None, *(node for node in crossing if is_unchecked_save(node))]


def _is_forward(node: fx.Node) -> bool:
    return phase_of(node) is Phase.FORWARD


def _crosses(node: fx.Node) -> bool:
    # Constants belong to the module and are at hand in both halves.
    return _is_forward(node) and node.op != "get_attr"


def _forward(
    joint: fx.GraphModule, saved: Sequence[fx.Node | None], outputs: Sequence[Any], steps: Mapping[fx.Node, int]
) -> Half:
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in joint.graph.nodes:
        if node.op != "output" and _is_forward(node):
            copies[node] = graph.node_copy(node, copies.__getitem__)
    handle = graph.create_node("call_function", open_handle, name=HANDLE)
    _describe_handle(handle, joint, Phase.FORWARD)
    stash = [handle if node is None else copies[node] for node in saved]
    output = graph.output((*fx.map_arg(list(outputs), copies.__getitem__), *stash))
    descriptors = output_descriptors(joint.graph.output_node())[: len(outputs)]
    set_output_descriptors(output, [*descriptors, *map(SavedForBackwardsAOTOutput, range(len(stash)))])
    return Half(fx.GraphModule(joint, graph), _steps_of(copies, steps))


def _backward(
    joint: fx.GraphModule, saved: Sequence[fx.Node | None], gradients: Sequence[Any], steps: Mapping[fx.Node, int]
) -> Half:
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in saved:
        placeholder = graph.create_node(
            "placeholder", HANDLE if node is None else node.name, name=HANDLE if node is None else node.name
        )
        if node is None:
            _describe_handle(placeholder, joint, Phase.BACKWARD)
        else:
            placeholder.meta.update(node.meta)
            copies[node] = placeholder
    for node in joint.graph.nodes:
        if node.op != "output" and (not _is_forward(node) or node.op == "get_attr"):
            copies[node] = graph.node_copy(node, copies.__getitem__)
    output = graph.output(tuple(fx.map_arg(list(gradients), copies.__getitem__)))
    set_output_descriptors(output, output_descriptors(joint.graph.output_node())[-len(gradients) :])
    return Half(fx.GraphModule(joint, graph), _steps_of(copies, steps))


def _steps_of(copies: Mapping[fx.Node, fx.Node], steps: Mapping[fx.Node, int]) -> dict[fx.Node, int]:
    # What backward receives from forward is a copy of an op's node too, but a placeholder: nothing runs there.
    return {copy: steps[node] for node, copy in copies.items() if node in steps and copy.op == "call_function"}


def _describe_handle(node: fx.Node, joint: fx.GraphModule, phase: Phase) -> None:
    with fake_mode_of(joint.graph):
        set_value(node, torch.empty(1, dtype=torch.int64))
    set_phase(node, phase)
