"""The bytes that a joint graph holds at once when everything is kept, without lowering it.

Enters: a joint graph at any stage of tidying. Leaves: a number, for the line that each pass logs. After the last pass
it is the peak of the keep-all plan without workspaces (`tests/cpu/test_passes.py`). Computed apart from `ir.Graph`,
which wants forward before backward and costs far more to make.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import accumulate

from torch import fx

from vdnn.capture.lower import is_returned, mutated_by
from vdnn.capture.nodes import StorageKey, is_op, is_tangent, phase_of, storage_key, storage_keys, tensor_of, tensors_of
from vdnn.ir import Phase


class _Lifetimes:
    """From which op to which each storage lives. A result that is written into an argument lives where that does."""

    def __init__(self, num_ops: int) -> None:
        self.end = num_ops - 1
        self.first: dict[StorageKey, int] = {}
        self.last: dict[StorageKey, int] = {}
        self.nbytes: dict[StorageKey, int] = {}
        self.home: dict[StorageKey, StorageKey] = {}

    def touch(self, node: fx.Node, moment: int) -> None:
        for tensor in tensors_of(node):
            if tensor is not None:
                key = self.home.get(storage_key(tensor), storage_key(tensor))
                self.nbytes.setdefault(key, tensor.untyped_storage().nbytes())
                self.first[key] = min(moment, self.first.get(key, moment))
                self.last[key] = max(moment, self.last.get(key, moment))

    def write_into(self, node: fx.Node) -> None:
        written = [source for source in mutated_by(node) if is_returned(node)]
        for result, source in zip(storage_keys(node), written, strict=False):
            (key,) = storage_keys(source)
            self.home[result] = self.home.get(key, key)

    def peak_nbytes(self) -> int:
        change: dict[int, int] = defaultdict(int)
        for key, nbytes in self.nbytes.items():
            change[self.first[key]] += nbytes
            change[self.last[key] + 1] -= nbytes
        return max(accumulate(change[moment] for moment in sorted(change)), default=0)


def keep_all_peak_nbytes(graph: fx.Graph) -> int:
    """Inputs live through the step, gradients that arrive from the first backward op on, results to their last use,
    outputs to the end."""
    ops = [node for node in graph.nodes if is_op(node)]
    lives = _Lifetimes(max(len(ops), 1))
    backward = next((moment for moment, op in enumerate(ops) if phase_of(op) is Phase.BACKWARD), lives.end)
    for node in graph.nodes:
        if node.op in ("placeholder", "get_attr"):
            tensor = tensor_of(node)
            is_kept = not is_tangent(node) or (tensor is not None and tensor.shape == ())  # a loss's is the caller's
            lives.touch(node, backward if is_tangent(node) else 0)
            if is_kept:
                lives.touch(node, lives.end)
    for moment, op in enumerate(ops):
        lives.write_into(op)
        for touched in (*op.all_input_nodes, op):
            lives.touch(touched, moment)
    for node in graph.output_node().all_input_nodes:
        lives.touch(node, lives.end)
    return lives.peak_nbytes()
