"""Gradient accumulation: forward and backward of one chunk of the batch, then of the next.

Enters: a joint graph, as it was traced, of a step that returns one scalar loss. Leaves: a joint graph with the same
inputs and outputs whose forward runs every chunk through forward and backward and adds gradients up, and whose backward
multiplies them by the gradient of the loss that arrives. This is `for part in batch.chunk(k): loss(part).backward()`,
found by itself.

The one idea: the gradient of a scalar is linear in the gradient that arrives, so it can be computed for 1 before that
is known (`linear.py` looks whether that is so: a backward that clips is not). Feature maps then live for one chunk's
time. Sums of gradients have other last bits than in one piece; the product is exact for 1 and every power of two. What
forward saved is never written to: backward may run twice.

Not for networks that mix samples, such as those with BatchNorm in training: there is no such program for them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import fx

from vdnn.capture.nodes import is_tangent, set_phase, shape_of, tensor_of
from vdnn.capture.ops.information import op_name
from vdnn.compile.forms.analysis import Analysis
from vdnn.compile.forms.calls import Caller
from vdnn.compile.forms.chunked import ChunkedStep, sample_nbytes, splittable
from vdnn.compile.forms.linear import is_linear_in_tangent
from vdnn.compile.forms.mean_losses import CROSS_ENTROPIES
from vdnn.compile.forms.stretches import ChosenOps, PartsProgram, Stretch, schedule, writes_input
from vdnn.ir import Phase

aten = torch.ops.aten

_SMALL_SHARE = 1 / 8
"""Rows of log-probabilities up to this share of the largest step are kept for all chunks, so that the loss is one sum
with the bits it has in one piece. In language models they are the largest tensor there is."""


def can_accumulate(network: ChunkedStep) -> bool:
    """One scalar loss, nothing between its first op and its last gradient that needs all samples at once, and gradients
    that are linear in the one that arrives."""
    tangents = [node for node in network.joint.graph.find_nodes(op="placeholder") if is_tangent(node)]
    if len(tangents) != 1 or shape_of(tangents[0]) != ():
        return False
    _, program = _program(network.analysis)
    return sum(isinstance(item, Stretch) for item in program) == 1 and is_linear_in_tangent(network.joint.graph)


def accumulate(network: ChunkedStep, parts: int, num_forward_outputs: int) -> fx.GraphModule:
    writer = network.written(_program, parts)
    joint = writer.finish(network.joint)
    outputs: Any = joint.graph.output_node().args[0]
    _run_in_forward(joint.graph, [*writer.in_stretches, *outputs[:num_forward_outputs]])
    (tangent,) = [node for node in joint.graph.find_nodes(op="placeholder") if is_tangent(node)]
    _start_from_one(joint.graph, tangent)
    _multiply_gradients(joint.graph, tangent, num_forward_outputs)
    return joint


def _program(analysis: Analysis) -> tuple[ChosenOps, PartsProgram]:
    """All ops in one go. Updates of inputs come last: until then everybody reads what was there before."""
    kept_whole = {*_small_losses(analysis), *_of_integers_alone(analysis)}
    choice = ChosenOps(analysis, {op for op in splittable(analysis) if op not in kept_whole})
    return choice, schedule(choice, sorted(analysis.ops, key=writes_input))


def _small_losses(analysis: Analysis) -> list[fx.Node]:
    largest = max((sample_nbytes(analysis, op) for op in analysis.ops), default=0)
    losses = [op for op in splittable(analysis) if op_name(op) in CROSS_ENTROPIES]
    return [op for op in losses if sample_nbytes(analysis, op) <= _SMALL_SHARE * largest]


def _of_integers_alone(analysis: Analysis) -> set[fx.Node]:
    """Counts that are made of labels and of nothing else, and that every chunk's loss is divided by: labels are all
    there before the first chunk. What is as large as the batch and leads to no count runs in chunks like the rest."""
    found: set[fx.Node] = set()
    for node in analysis.graph.nodes:
        sources = node.all_input_nodes
        if node.op == "call_function" and sources and all(n in found or _is_integer_input(n) for n in sources):
            found.add(node)
    counts = {node for node in found if node not in analysis.rows}
    for node in reversed(analysis.graph.nodes):
        if node in counts:
            counts.update(source for source in node.all_input_nodes if source in found)
    return counts


def _is_integer_input(node: fx.Node) -> bool:
    tensor = tensor_of(node)
    is_number = tensor is not None and (tensor.is_floating_point() or tensor.is_complex())
    return node.op == "placeholder" and not is_number


def _run_in_forward(graph: fx.Graph, wanted: Iterable[Any]) -> None:
    """These nodes and all that they read. Gradients that are computed whole from what the chunks left stay in backward,
    where the product with the arriving gradient can overwrite them."""
    needed = {node for node in wanted if isinstance(node, fx.Node)}
    for node in reversed(graph.nodes):
        if node in needed and node.op == "call_function":
            needed.update(node.all_input_nodes)
            set_phase(node, Phase.FORWARD)


def _start_from_one(graph: fx.Graph, tangent: fx.Node) -> None:
    tensor = tensor_of(tangent)
    assert tensor is not None, f"{tangent} is no tensor"
    first = next(node for node in graph.nodes if node.op != "placeholder")
    with graph.inserting_before(first):
        one = Caller(graph, graph).call(tangent, aten.ones.default, [], dtype=tensor.dtype, device=tensor.device)
    set_phase(one, Phase.FORWARD)
    tangent.replace_all_uses_with(one)


def _multiply_gradients(graph: fx.Graph, tangent: fx.Node, num_forward_outputs: int) -> None:
    output = graph.output_node()
    outputs: Any = output.args[0]
    caller, products = Caller(graph, graph), {}
    with graph.inserting_before(output):
        for gradient in dict.fromkeys(node for node in outputs[num_forward_outputs:] if isinstance(node, fx.Node)):
            products[gradient] = caller.call(gradient, aten.mul.Tensor, gradient, tangent)
            set_phase(products[gradient], Phase.BACKWARD)
    gradients = [products.get(node, node) for node in outputs[num_forward_outputs:]]
    output.args = (type(outputs)([*outputs[:num_forward_outputs], *gradients]),)
