"""The forms of a step that a planner may try instead of the traced one, cheapest first.

Enters: a joint graph. Leaves: an iterator of `Form`s: a name, whether its gradients have the bits of the traced step,
and a function that makes it. The one idea: a form is again a joint graph with the inputs and outputs of the traced one,
so everything that plans, prices and runs the one does so with the other, and the planner needs no word for chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import fx

from vdnn.capture.lower import InputInfo
from vdnn.capture.nodes import tensors_of
from vdnn.compile.forms.accumulated import accumulate, can_accumulate
from vdnn.compile.forms.analysis import batch_of
from vdnn.compile.forms.chunked import ChunkedStep, large_steps, splittable
from vdnn.compile.forms.prepare import prepare
from vdnn.convolutions.split_backward import split_convolution_backwards, splits_any

PARTS = (2, 4, 8)
"""Into how many chunks a batch is cut, at most one per sample."""

_LEFT_WHOLE = 1 / 2
"""Steps up to this share of the largest step's chunk stay whole. At that size they do not bound the peak even next to a
whole map that a chunk reads or fills: VGG-16 with 64 images has a least budget of 1583 MiB in 4 chunks, 1877 MiB with
a share of 1 and 2465 MiB with a share of 2 (roofline costs, offloading)."""


@dataclass(frozen=True)
class Form:
    """`make` copies the joint graph and rewrites the copy, which takes time: only for forms that are tried.

    `exact`: losses and gradients have the bits of the traced step on this kind of device."""

    name: str
    exact: bool
    make: Callable[[], fx.GraphModule]


def forms(
    joint: fx.GraphModule, num_forward_outputs: int, *, exact: bool, plain: Sequence[InputInfo] = ()
) -> Iterator[Form]:
    """Other forms of the step, without the traced one; only exact ones if `exact`.

    `joint` is the graph as it was traced, and stays so; what a form makes is not tidy yet. `plain` describes the inputs
    that AOTAutograd calls plain, as for `describe_inputs`."""
    if splits_any(joint.graph):
        yield Form("convolution backwards split", True, partial(split_convolution_backwards, joint))
    batch = batch_of(joint.graph, plain)
    if exact or batch < 2 or _computes_in_short_floats(joint.graph):
        return

    network = ChunkedStep(prepare(split_convolution_backwards(joint)), batch, plain)
    if not splittable(network.analysis):
        return
    if can_accumulate(network):
        for parts in (parts for parts in PARTS if parts <= batch):
            yield Form(f"batch in {parts} chunks", False, partial(accumulate, network, parts, num_forward_outputs))
    for parts in (parts for parts in PARTS if parts <= batch):
        yield Form(f"large steps in {parts} chunks", False, partial(_large_steps, network, parts))
    for parts in (parts for parts in PARTS if parts <= batch):
        yield Form(f"all steps in {parts} chunks", False, partial(_all_steps, network, parts))


def _computes_in_short_floats(graph: fx.Graph) -> bool:
    """Sums over chunks would be sums of rounded sums there, and a mean written as a sum may overflow."""
    tensors = (tensor for node in graph.nodes for tensor in tensors_of(node))
    return any(tensor is not None and tensor.dtype in (torch.float16, torch.bfloat16) for tensor in tensors)


def _large_steps(network: ChunkedStep, parts: int) -> fx.GraphModule:
    """All steps but those that are small next to the largest one's chunk."""
    return network.in_chunks(partial(large_steps, share=_LEFT_WHOLE / parts), parts)


def _all_steps(network: ChunkedStep, parts: int) -> fx.GraphModule:
    return network.in_chunks(splittable, parts)
