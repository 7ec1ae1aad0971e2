"""While a model is traced, have composite ops take the path they take in eager mode.

PyTorch keeps Python versions of some composite ops, written for symbolic shapes, and its tracers prefer them. Not all
compute the same bits as the C++ versions that eager mode runs: dropout with p = 0.025 scales by another last bit,
bilinear upsampling adds in another order. Shapes are concrete here, so the C++ versions can be traced, and what is
captured is what eager runs.

Dropout has a version of our own, which is eager's on the tensor's device: where it is one kernel, that kernel; on the
CPU a formula, of which the fused form that PyTorch traces rounds the scale differently. The tracer's stand-in for its
backward returns other strides than the op. So do some other stand-ins: `stand_ins.py`.

Note: [One trace at a time]
The tables that are patched here belong to the process, and so do the modules that a trace changes (`export.py`). Two
threads that traced at once could save each other's patches for the original and put them back for good. So a trace
holds a lock from its first patch to its last. It is PyTorch's own compile lock: a thread that compiles for itself waits
too, and who comes from Dynamo has it already, so that no two threads wait for each other. A trace inside a trace finds
the patches in place: the outermost puts them in and takes them out.

Ops whose C++ version reads tensor values (`one_hot`) keep their Python version: a trace cannot read any. Of recurrent
layers the C++ version is traced, which is what eager runs: oneDNN's fused layer on the CPU where there is one for the
type, with its workspace (`recurrent_workspace.py`), else the ops of the cells; PyTorch's Python version has other last
bits, and leaves out the dropout between layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from vdnn.capture.nodes import count_forward_outputs, is_tangent, tensors_of
from vdnn.capture.ops.information import op_name
from vdnn.capture.ops.overloads import overloads
from vdnn.capture.stand_ins import stand_ins_are_as_kernels
from vdnn.capture.tidy.shared_casts import cast_once, casts_of
from vdnn.errors import InexactTrace
from vdnn.known_ops import KNOWN_OPS, known
from vdnn.torch_private import (
    compile_lock,
    forget_dispatch,
    functorch_config,
    fuses_dropout,
    python_kernels,
    side_effectful_functions,
    strided_writes_traced,
    tangents_traced_as,
)

aten = torch.ops.aten

_KEYS = (torch.DispatchKey.Autograd, torch.DispatchKey.CompositeImplicitAutograd)


@dataclass(frozen=True, slots=True)
class OtherBits:
    """An op of a trace whose last bits are not eager's, and why."""

    name: str
    reason: str


def other_bits(graph: fx.Graph) -> list[OtherBits]:
    """Where a traced graph would not be bit for bit what eager mode does."""
    found = [OtherBits(str(node.target), known(op_name(node)).inexact_because) for node in graph.nodes]
    of_ops = [
        replace(
            op,
            reason=f"{op.name} cannot be captured bit for bit: {op.reason}. Write the product as a chain of"
            " multiplications or as exp(sum(log)), or leave this part of the model plain.",
        )
        for op in found
        if op.reason
    ]
    return [*of_ops, *filter(None, (_repeated_casts(node) for node, _ in _trained_inputs(graph)))]


def cast_shared_weights_once(graph: fx.Graph) -> None:
    """As eager autocast does (`tidy/shared_casts.py`)."""
    for parameter, gradient in _trained_inputs(graph):
        cast_once(graph, parameter, gradient)


def _trained_inputs(graph: fx.Graph) -> list[tuple[fx.Node, fx.Node]]:
    """The inputs of a joint graph that get a gradient, with it: one output per input follows those of the forward, or
    None."""
    inputs = [node for node in graph.find_nodes(op="placeholder") if not is_tangent(node)]
    outputs: Any = graph.output_node().args[0]
    gradients = outputs[count_forward_outputs(graph) :]
    return [(node, gradient) for node, gradient in zip(inputs, gradients, strict=False) if gradient is not None]


def _repeated_casts(parameter: fx.Node) -> OtherBits | None:
    """Eager autocast casts a weight once and adds its gradients in the narrow type; a trace casts it at every use."""
    narrow = casts_of(parameter)
    if len(narrow) < 2:
        return None
    return OtherBits(
        f"casts of {parameter.name}",
        f"autocast uses {parameter.name} {len(narrow)} times: eager mode casts a shared weight once and adds its"
        " gradients in"
        " the narrow type, a trace casts it each time. Use the shared layer outside autocast, or leave it plain.",
    )


def require_dense(graph: fx.Graph) -> None:
    """Refuse a graph with sparse tensors: they have no storage of a size that is known beforehand."""
    for node in graph.nodes:
        if any(tensor is not None and tensor.layout is not torch.strided for tensor in tensors_of(node)):
            raise InexactTrace(
                f"{node.target} makes a sparse tensor, whose size is not known before it is computed."
                " Use dense gradients (nn.Embedding(sparse=False)), or leave this part of the model plain."
            )


def _dropout(tensor: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    """Eager's dropout, bit for bit and stride for stride: on devices that fuse it, one op, elsewhere its formula
    (ATen/native/Dropout.cpp)."""
    if p == 0 or not train or tensor.numel() == 0:
        return tensor
    if p < 1 and tensor.device.type in fuses_dropout():
        return aten.native_dropout(tensor, p, train)[0]
    if p == 1:
        return tensor * torch.zeros((), dtype=tensor.dtype, device=tensor.device)
    noise = torch.empty_like(tensor).bernoulli_(1 - p)
    noise.div_(1 - p)
    return tensor * noise


def _bernoulli_meta(tensor: torch.Tensor, p: float = 0.5, *, generator: Any = None) -> torch.Tensor:
    """Laid out as its input is: `draw_random_numbers_in_place` will make it write into it."""
    return torch.empty_like(tensor)


@contextmanager
def _random_numbers_are_drawn() -> Iterator[None]:
    """While open, no pass removes an op that draws random numbers because nobody reads them: those drawn after it would
    be others."""
    random = {overload for op in KNOWN_OPS.values() if op.draws for overload in overloads(op.name)}
    added = random - side_effectful_functions
    side_effectful_functions.update(added)
    try:
        yield
    finally:
        side_effectful_functions.difference_update(added)


def _tensor_of_its_own(tangent: torch.Tensor) -> torch.Tensor:
    """How autograd hands over the gradient of an output: dense, in the order of dims that the output has, with a
    storage of its own. Traced as a view like its output (a returned `chunk`, a slice) it would be copied into the
    strides of one before backward, holes included, and two of them would be taken for one storage."""
    return torch.empty_like(tangent)


class _Traces:
    """How many run inside each other. Who holds the lock may read and write it."""

    num_open = 0


@contextmanager
def eager_kernels() -> Iterator[None]:
    """While open, this thread traces alone, and what it traces are eager's kernels. Note: [One trace at a time]"""
    with compile_lock, ExitStack() as patches:
        if _Traces.num_open == 0:
            patches.enter_context(_patched())
        _Traces.num_open += 1
        try:
            yield
        finally:
            _Traces.num_open -= 1


@contextmanager
def _patched() -> Iterator[None]:
    """Set the Python versions aside, and put them back. Meanwhile backward is traced outside autocast, and nothing that
    draws random numbers is removed."""
    replaced: dict[tuple[Any, torch.DispatchKey], Callable[..., Any] | None] = {
        (traced, key): None
        for op in KNOWN_OPS.values()
        if op.traced_in_cpp
        for traced in overloads(op.name)
        for key in _KEYS
    }
    replaced |= {(aten.dropout.default, key): _dropout for key in _KEYS}
    replaced[aten.bernoulli.p, torch.DispatchKey.Meta] = _bernoulli_meta
    saved = {op: dict(python_kernels(op)) for op, _ in replaced}
    for (op, key), kernel in replaced.items():
        python_kernels(op).pop(key, None)
        if kernel is not None:
            python_kernels(op)[key] = kernel
        forget_dispatch(op)
    try:
        # PyTorch asks that `loss.backward()` be called outside autocast; AOTAutograd would trace it inside.
        with (
            functorch_config.patch(backward_pass_autocast="off"),
            _random_numbers_are_drawn(),
            stand_ins_are_as_kernels(),
            strided_writes_traced(),
            tangents_traced_as(_tensor_of_its_own),
        ):
            yield
    finally:
        for op, kernels in saved.items():
            python_kernels(op).clear()
            python_kernels(op).update(kernels)
            forget_dispatch(op)
