"""Steps in chunks of the batch: those that are largest, or all of them.

Enters: a joint graph as it was traced. Leaves: a joint graph with the same inputs and outputs, forward and backward
still apart, in which the chosen ops run once per chunk. The one idea: what bounds every plan is the largest step
(SuperNeurons, PPoPP 2018, section 3.2), and a step on a k-th of the batch is a k-th of it. The rest of the network,
whose maps are small, stays at the full batch and its speed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

import torch
from torch import fx

from vdnn.capture.lower import InputInfo
from vdnn.capture.nodes import arguments_of, phase_of, storage_key, tensor_of, tensors_of
from vdnn.capture.ops.traits import needs_of
from vdnn.compile.forms.analysis import Analysis
from vdnn.compile.forms.parts_writer import CannotSplit, PartsWriter, bounds_of
from vdnn.compile.forms.prepare import PreparedJoint
from vdnn.compile.forms.rows import Rows
from vdnn.compile.forms.stretches import ChosenOps, PartsProgram, Stretch, read_by_whole_ops, schedule, values_of
from vdnn.ir import Need, Phase
from vdnn.torch_private import OpOverload

Chooser = Callable[[Analysis], Collection[fx.Node]]


class ChunkedStep:
    """A prepared joint graph with its analysis."""

    def __init__(self, prepared: PreparedJoint, batch: int, plain: Sequence[InputInfo]) -> None:
        self.joint, self.batch, self._plain = prepared.joint, batch, plain
        self._counting = prepared.counting
        self.analysis = self._analysis()

    def _analysis(self, barred: Iterable[fx.Node] = ()) -> Analysis:
        return Analysis(self.joint.graph, self.batch, self._plain, {*self._counting, *barred})

    def written(self, program_of: Callable[[Analysis], tuple[ChosenOps, PartsProgram]], parts: int) -> PartsWriter:
        """The program, written for so many parts. Ops that turn out not to run in parts are barred, for this number of
        parts: a form must not depend on which others were made before. Every try bars one more op, so it ends."""
        analysis, barred = self.analysis, set[fx.Node]()
        while True:
            choice, program = program_of(analysis)
            try:
                return PartsWriter(choice, program, bounds_of(self.batch, parts))
            except CannotSplit as finding:
                barred.add(finding.op)
                analysis = self._analysis(barred)

    def in_chunks(self, choose: Chooser, parts: int) -> fx.GraphModule:
        """The chosen ops in chunks, forward first and then backward."""

        def program_of(analysis: Analysis) -> tuple[ChosenOps, PartsProgram]:
            phases = _phases(analysis.ops)
            choice = ChosenOps(analysis, choose(analysis))
            choice = ChosenOps(analysis, _worthwhile(choice, schedule(choice, *phases)))
            return choice, schedule(choice, *phases)

        return self.written(program_of, parts).finish(self.joint)


def _phases(ops: Iterable[fx.Node]) -> tuple[list[fx.Node], list[fx.Node]]:
    forward = [op for op in ops if phase_of(op) is not Phase.BACKWARD]
    return forward, [op for op in ops if phase_of(op) is Phase.BACKWARD]


def _worthwhile(choice: ChosenOps, program: PartsProgram) -> set[fx.Node]:
    """The ops of stretches that make at least one value of which nobody needs the whole. Others would save nothing."""
    copied = read_by_whole_ops(choice, program)

    def saves(op: fx.Node) -> bool:
        return any(choice.in_parts(value) and value not in copied for value in values_of(op))

    stretches = [item for item in program if isinstance(item, Stretch)]
    return {op for stretch in stretches if any(map(saves, stretch.ops)) for op in stretch.ops}


def splittable(analysis: Analysis) -> list[fx.Node]:
    """Ops that may run in chunks and gain by it."""
    return [op for op in analysis.ops if op in analysis.splits and not _sums_little(analysis, op)]


def _sums_little(analysis: Analysis, op: fx.Node) -> bool:
    """A sum over the batch that is larger than what it sums: the gradient of a wide linear layer. To keep its arguments
    until all chunks are there takes less than a sum that grows, and it is computed once, in one piece."""
    results = analysis.splits[op].results
    if any(isinstance(result, Rows) for result in results):
        return False
    summed = [tensor for tensor, result in zip(tensors_of(op), results, strict=True) if result and tensor is not None]
    return sum(map(_nbytes, summed)) >= sample_nbytes(analysis, op)


def large_steps(analysis: Analysis, share: float) -> list[fx.Node]:
    """Ops that handle more than this share of what the largest one does, counted in bytes of samples."""
    nbytes = {op: sample_nbytes(analysis, op) for op in analysis.ops}
    largest = max(nbytes.values(), default=0)
    return [op for op in splittable(analysis) if nbytes[op] > share * largest]


def sample_nbytes(analysis: Analysis, op: fx.Node) -> int:
    """Bytes of what an op reads and writes, as far as it grows with the batch."""
    read = [tensor_of(source) for source in _used(op) if source in analysis.rows]
    results = analysis.results.get(op, ())
    written = [tensor for tensor, rows in zip(tensors_of(op), results, strict=False) if isinstance(rows, Rows)]
    storages = {storage_key(tensor): tensor for tensor in (*read, *written) if tensor is not None}
    return sum(_nbytes(tensor) for tensor in storages.values())


def _nbytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _used(op: fx.Node) -> list[fx.Node]:
    """Arguments of which more is read than the shape."""
    if not isinstance(op.target, OpOverload):
        return list(op.all_input_nodes)
    arguments = arguments_of(op)
    unread = {name for name, need in needs_of(op.target, arguments).items() if need in (Need.SHAPE, Need.NOTHING)}
    used: list[fx.Node] = []
    fx.map_arg([value for name, value in arguments.items() if name not in unread], used.append)
    return used
