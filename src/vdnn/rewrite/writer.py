"""Write one half of a plan's program as a graph: the traced ops, and between them the calls that move storages.

Enters: instructions of `plan/schedule.py`, one by one. Leaves: a graph whose nodes run in exactly that order, and the
position of each instruction.

The one idea: a joint node has at most one live copy in the half. When its storage leaves the device the copy is
forgotten, so that nothing can read it by mistake; when the storage comes back as flat bytes, the next reader gets a new
look at those bytes with the shape, strides and dtype of the trace. Values and their views need no special care: each is
a look at its storage.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import torch
from torch import fx

from vdnn.capture.lower import Lowered
from vdnn.capture.nodes import is_getitem, tensor_of
from vdnn.errors import Unsupported
from vdnn.ir import Need
from vdnn.plan.plan import Plan
from vdnn.plan.schedule import Instruction, Kind
from vdnn.runtime import steps as runtime
from vdnn.runtime.phantom import phantom


class HalfWriter:
    """`copies` maps joint nodes to their live copies; whoever starts a half fills in its inputs."""

    def __init__(self, joint: fx.GraphModule, lowered: Lowered, plan: Plan) -> None:
        self.graph = fx.Graph()
        self.copies: dict[fx.Node, fx.Node] = {}
        self.position_of: dict[fx.Node, int] = {}
        self._joint, self._lowered, self._plan = joint, lowered, plan
        self._flat: dict[int, fx.Node] = {}
        self._nodes_in = nodes_by_storage(lowered)
        self._results = _results_of_steps(lowered)

    def constants(self) -> None:
        for node in self._joint.graph.find_nodes(op="get_attr"):
            self.copies[node] = self.graph.node_copy(node)

    def write(self, position: int, instruction: Instruction) -> None:
        if instruction.kind is Kind.RUN:
            self._run(position, instruction.op)
        elif instruction.kind is Kind.SEND:
            self._call(position, runtime.send, instruction.decision, *self._live_copies(instruction.storage)[-1:])
        elif instruction.kind is Kind.LEAVE:
            self._call(position, runtime.leave, instruction.decision, *self._live_copies(instruction.storage)[-1:])
            self._flat.pop(instruction.storage, None)
            for node in self._nodes_in[instruction.storage]:
                self.copies.pop(node, None)
        elif instruction.kind is Kind.FETCH:
            self._flat[instruction.storage] = self._call(position, runtime.fetch, instruction.decision)
        elif instruction.kind is Kind.ARRIVE:
            self._call(position, runtime.arrive, instruction.decision)
        else:
            raise Unsupported(
                f"the plan of strategy {self._plan.strategy!r} wants to {instruction.kind}"
                f" {instruction.label(self._plan.problem.graph)!r}, and this version keeps and offloads."
                " Use strategy='keep-all' or 'offload'."
            )

    def read(self, node: fx.Node) -> fx.Node:
        """The live copy of a joint node, made from the bytes of its storage if those have been away."""
        if node not in self.copies:
            storage = self._storage_of(node)
            assert storage in self._flat, f"{node} is read while its storage is away"
            self.copies[node] = self.graph.call_function(runtime.look, (self._flat[storage], *_layout(node)))
        return self.copies[node]

    def _run(self, position: int, step: int) -> None:
        node = self._lowered.nodes[step]
        shells = self._shells(step, node)
        for source in node.all_input_nodes:
            if source not in shells:
                self.read(source)
        self.copies[node] = copy = self.graph.node_copy(node, lambda s: shells[s] if s in shells else self.copies[s])
        self.position_of[copy] = position
        for result in self._results[node]:
            self.copies[result] = self.graph.node_copy(result, self.copies.__getitem__)

    def _shells(self, step: int, node: fx.Node) -> dict[fx.Node, fx.Node]:
        """Stand-ins for what is away while an op wants to know only its shape. A plan may count on those."""
        needs = {read.value: read.need for read in self._lowered.graph.ops[step].reads}
        away = [s for s in node.all_input_nodes if s not in self.copies and self._storage_of(s) not in self._flat]
        for source in away:
            need = needs[self._lowered.value_of_node[source]]
            assert need in (Need.SHAPE, Need.NOTHING), f"{node} needs {need} of {source}, whose storage is away"
        return {source: self.graph.call_function(phantom, _layout(source)) for source in away}

    def _call(self, position: int, function: object, *arguments: object) -> fx.Node:
        node = self.graph.call_function(function, arguments)  # type: ignore[arg-type]
        self.position_of[node] = position
        return node

    def _live_copies(self, storage: int) -> list[fx.Node]:
        """The values of a storage that this half holds, in order of birth. Any one of them shows all its bytes."""
        return [self.copies[node] for node in self._nodes_in[storage] if node in self.copies]

    def _storage_of(self, node: fx.Node) -> int:
        return self._plan.problem.graph.values[self._lowered.value_of_node[node]].storage


def _layout(node: fx.Node) -> tuple[tuple[int, ...], tuple[int, ...], int, torch.dtype]:
    tensor = tensor_of(node)
    assert tensor is not None, f"{node} has a storage without being a tensor"
    return tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset()), tensor.dtype


def nodes_by_storage(lowered: Lowered) -> Mapping[int, Sequence[fx.Node]]:
    """The joint nodes whose values live in each storage, in order of birth."""
    nodes: dict[int, list[fx.Node]] = defaultdict(list)
    for node, value in lowered.value_of_node.items():
        nodes[lowered.graph.values[value].storage].append(node)
    return nodes


def _results_of_steps(lowered: Lowered) -> Mapping[fx.Node, Sequence[fx.Node]]:
    return {node: [user for user in node.users if is_getitem(user)] for node in lowered.nodes}
