"""Write one half of a plan's program as a graph: the traced ops, and between them the calls that move storages.

Enters: instructions of `plan/judge/schedule.py`, one by one. Leaves: a graph whose nodes run in exactly that order, and
the position of each instruction.

The one idea: a joint node has at most one live copy in the half. When its storage leaves the device the copy is
forgotten, so that nothing can read it by mistake; when the storage comes back as flat bytes, the next reader gets a new
look at those bytes with the shape, strides and dtype of the trace. Values and their views need no special care: each is
a look at its storage. Inputs do: where in its storage an input begins differs from call to call (batches are slices of
a data set), so a look into it counts from there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import torch
from torch import fx

from vdnn.capture.lower import Lowered
from vdnn.capture.nodes import arguments_of, copy_meta, is_getitem, op_of, tensor_of, tensors_of
from vdnn.capture.ops.traits import WITHOUT_UPDATES
from vdnn.convolutions.traced import variant_arguments
from vdnn.ir import NO_USE, Need, Read, Trait
from vdnn.plan.judge.schedule import Instruction, Kind
from vdnn.plan.model.actions import Encode, EncodeOffload
from vdnn.plan.plan import Plan
from vdnn.rewrite.encoded_reads import from_encoding
from vdnn.runtime import running_step as runtime
from vdnn.runtime.convolution_calls import IN_A_STEP
from vdnn.runtime.random_states import random_state


class LiveCopies(dict[fx.Node, fx.Node]):
    """Joint nodes and their live copies; `origin_of` remembers, of every copy there ever was, what it was a copy of."""

    def __init__(self) -> None:
        super().__init__()
        self.origin_of: dict[fx.Node, fx.Node] = {}

    def __setitem__(self, node: fx.Node, copy: fx.Node) -> None:
        self.origin_of[copy] = node
        super().__setitem__(node, copy)


class HalfWriter:
    """`copies` maps joint nodes to their live copies, `encodings` decisions to theirs; whoever starts a half fills in
    its inputs."""

    def __init__(self, joint: fx.GraphModule, lowered: Lowered, plan: Plan) -> None:
        self.graph = fx.Graph()
        self.copies = LiveCopies()
        self.position_of: dict[fx.Node, int] = {}
        self._joint, self._lowered, self._plan = joint, lowered, plan
        self._flat: dict[int, fx.Node] = {}
        self.encodings: dict[int, fx.Node] = {}
        self._read_as_encoding: dict[int, int] = {
            decision.storage: position
            for position, decision in enumerate(plan.decisions)
            if isinstance(decision.action, Encode | EncodeOffload) and decision.action.direct
        }
        self.random_states: dict[int, fx.Node | None] = dict.fromkeys(random_replays(plan))
        self._nodes_in = nodes_by_storage(lowered)
        self._input_behind = inputs_behind(lowered)
        self._results = _results_of_moments(lowered)

    def constants(self) -> None:
        for node in self._joint.graph.find_nodes(op="get_attr"):
            self.copies[node] = self.graph.node_copy(node)

    def write(self, position: int, instruction: Instruction) -> None:
        decision, storage = instruction.decision, instruction.storage
        match instruction.kind:
            case Kind.RUN:
                self._run(position, instruction.op)
            case Kind.SEND:
                self._call(position, runtime.send, decision, *self._what_travels(instruction))
            case Kind.LEAVE:
                self._call(position, runtime.leave, decision, *self._what_travels(instruction))
                if self.encodings.pop(decision, None) is None:
                    self._forget(storage)
            case Kind.FETCH:
                fetched = self._call(position, runtime.fetch, decision)
                if self._is_encoded(decision):
                    self.encodings[decision] = fetched
                else:
                    self._flat[storage] = fetched
            case Kind.ARRIVE:
                self._call(position, runtime.arrive, decision)
            case Kind.ENCODE:
                self.encodings[decision] = self._call(
                    position, runtime.encode, decision, self._live_copies(storage)[-1]
                )
                self._forget(storage)
            case Kind.DECODE:
                self._flat[storage] = self._call(position, runtime.decode, decision, self.encodings.pop(decision))
            case Kind.REPLAY:
                self._replay(position, instruction)

    def storage_of_copies(self) -> dict[fx.Node, int]:
        """The storage that each tensor of the half lies in, also of those that are no longer live."""
        of_node = self._lowered.value_of_node
        return {copy: self._storage_of(node) for copy, node in self.copies.origin_of.items() if node in of_node}

    def _what_travels(self, instruction: Instruction) -> list[fx.Node]:
        """The encoding, once there is one; else a value of the storage, which shows all its bytes."""
        if instruction.decision in self.encodings:
            return [self.encodings[instruction.decision]]
        return self._live_copies(instruction.storage)[-1:]

    def _is_encoded(self, decision: int) -> bool:
        return isinstance(self._plan.decisions[decision].action, EncodeOffload)

    def _forget(self, storage: int) -> None:
        self._flat.pop(storage, None)
        for node in self._nodes_in[storage]:
            self.copies.pop(node, None)

    def read(self, node: fx.Node) -> fx.Node:
        """The live copy of a joint node, made from the bytes of its storage if those have been away."""
        if node not in self.copies:
            shown = self._any_look(node)
            assert shown is not None, f"{node} is read while its storage is away"
            self.copies[node] = self.graph.call_function(runtime.look, (*shown, *_layout(node), *_lazy_bits(node)))
        return self.copies[node]

    def _any_look(self, node: fx.Node) -> tuple[fx.Node, int] | None:
        """Something that shows the bytes of a node's storage, and at which byte of it that began in the trace: what
        came back flat, or any value of it, of inputs' storages one of the same input. None: it is away."""
        storage = self._storage_of(node)
        if storage in self._flat:
            return self._flat[storage], 0
        for other in reversed(self._nodes_in[storage]):
            if other in self.copies and self._input_behind.get(other) is self._input_behind.get(node):
                return self.copies[other], _offset_nbytes(other)
        return None

    def _run(self, position: int, moment: int) -> None:
        node = self._lowered.nodes[moment]
        encoded = self._encoded_source(moment, node)
        if moment in self.random_states:
            self.random_states[moment] = self.graph.call_function(random_state, _devices(node))
        copy = (
            self._copied(moment, self._lowered.graph.ops[moment].reads)
            if encoded is None
            else self._from_encoding(node, encoded)
        )
        self.copies[node] = copy
        self.position_of[copy] = position
        for result in self._results[node]:
            self.copies[result] = self.graph.node_copy(result, self.copies.__getitem__)

    def _encoded_source(self, moment: int, node: fx.Node) -> fx.Node | None:
        """The argument that this op reads as an encoding: its storage is encoded, and the plan wants no decoder."""
        if not self.encodings:
            return None
        needs = {read.value: read.need for read in self._lowered.graph.ops[moment].reads}
        for source in node.all_input_nodes:
            value = self._lowered.value_of_node.get(source)
            if value is None or source in self.copies or needs[value] in NO_USE:
                continue
            if self._read_as_encoding.get(self._storage_of(source)) in self.encodings:
                return source
        return None

    def _from_encoding(self, node: fx.Node, source: fx.Node) -> fx.Node:
        decision = self._read_as_encoding[self._storage_of(source)]
        action = self._plan.decisions[decision].action
        assert isinstance(action, Encode | EncodeOffload), f"{action.kind} has no encoding"
        function, arguments = from_encoding(
            node, source, self.encodings[decision], action.detail, lambda given: fx.map_arg(given, self.read)
        )
        # What the fused form does not read and the op did (a shape) lives until here, as the plan counts it.
        held = [self.copies[other] for other in node.all_input_nodes if other in self.copies]
        copy = self.graph.call_function(function, (*arguments, *held))
        copy_meta(node, copy)
        return copy

    def _replay(self, position: int, instruction: Instruction) -> None:
        """Run an op again; of its results only those stay that somebody waits for."""
        moment, node = instruction.op, self._lowered.nodes[instruction.op]
        copy = self._copied(moment, self._lowered.graph.replayed(moment)[0])
        if moment in self.random_states:
            copy.args = (self.random_states[moment], *_devices(node), copy.target, *copy.args)  # type: ignore[arg-type]
            copy.target = runtime.replay_random
        elif node.target in WITHOUT_UPDATES:
            _leave_out_updates(copy)
        self.position_of[copy] = position
        for result in (node, *self._results[node]):
            value = self._lowered.value_of_node.get(result)
            if value is not None and self._storage_of(result) in instruction.keeps:
                made = copy if result is node else self.graph.node_copy(result, lambda _: copy)
                self.copies[result] = made

    def _copied(self, moment: int, reads: Sequence[Read]) -> fx.Node:
        node = self._lowered.nodes[moment]
        shells = self._shells(node, reads)
        for source in node.all_input_nodes:
            if source not in shells:
                self.read(source)
        live = {source: shells[source] if source in shells else self.copies[source] for source in node.all_input_nodes}
        variant = self._variant(moment)
        if not variant:
            return self.graph.node_copy(node, live.__getitem__)
        arguments = fx.map_arg(variant_arguments(node, variant), live.__getitem__)
        copy = self.graph.call_function(IN_A_STEP[op_of(node)], arguments)
        copy_meta(node, copy)
        return copy

    def _variant(self, moment: int) -> str:
        """The name of the way in which the plan has an op computed; empty for the op as it was traced."""
        return self._plan.costs[moment].variant

    def _shells(self, node: fx.Node, reads: Sequence[Read]) -> dict[fx.Node, fx.Node]:
        """Stand-ins for what is away while an op wants to know only its shape. A plan may count on those."""
        needs = {read.value: read.need for read in reads}
        away = [s for s in node.all_input_nodes if s not in self.copies and self._any_look(s) is None]
        for source in away:
            need = needs.get(self._lowered.value_of_node[source], Need.NOTHING)
            assert need in NO_USE, f"{node} needs {need} of {source}, whose storage is away"
        return {
            source: self.graph.call_function(runtime.phantom, (*_layout(source), *_devices(source))) for source in away
        }

    def _call(self, position: int, function: object, *arguments: object) -> fx.Node:
        node = self.graph.call_function(function, arguments)  # type: ignore[arg-type]
        self.position_of[node] = position
        return node

    def _live_copies(self, storage: int) -> list[fx.Node]:
        """The values of a storage that this half holds, in order of birth. Any one of them shows all its bytes."""
        return [self.copies[node] for node in self._nodes_in[storage] if node in self.copies]

    def _storage_of(self, node: fx.Node) -> int:
        return self._plan.problem.graph.values[self._lowered.value_of_node[node]].storage


def random_replays(plan: Plan) -> list[int]:
    """Ops that draw random numbers and are run again: they must draw the same ones."""
    graph = plan.problem.graph
    again = {instruction.op for instruction in plan.program if instruction.kind is Kind.REPLAY}
    return sorted(moment for moment in again if graph.ops[moment].has(Trait.RANDOM))


def _devices(node: fx.Node) -> tuple[torch.device, ...]:
    return tuple(dict.fromkeys(tensor.device for tensor in tensors_of(node) if tensor is not None))


def _leave_out_updates(copy: fx.Node) -> None:
    """Turn a call that updates statistics into the one that does not, and that needs no stand-ins for them."""
    target, left_out = WITHOUT_UPDATES[copy.target]
    arguments, given_before = arguments_of(copy), copy.all_input_nodes
    copy.args, copy.kwargs = tuple(given for name, given in arguments.items() if name not in left_out), {}
    copy.target = target
    for node in given_before:
        if node.target is runtime.phantom and not node.users:
            copy.graph.erase_node(node)


def _layout(node: fx.Node) -> tuple[tuple[int, ...], tuple[int, ...], int, torch.dtype]:
    tensor = tensor_of(node)
    assert tensor is not None, f"{node} has a storage without being a tensor"
    return tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset()), tensor.dtype


def _lazy_bits(node: fx.Node) -> tuple[bool, bool]:
    """Whether the tensor stands for the conjugate, or for the negative, of the bytes it shows."""
    tensor = tensor_of(node)
    assert tensor is not None, f"{node} has a storage without being a tensor"
    return tensor.is_conj(), tensor.is_neg()


def _offset_nbytes(node: fx.Node) -> int:
    tensor = tensor_of(node)
    assert tensor is not None, f"{node} has a storage without being a tensor"
    return int(tensor.storage_offset()) * tensor.element_size()


def inputs_behind(lowered: Lowered) -> Mapping[fx.Node, fx.Node]:
    """Of every node that lies in an input's storage, the input that it is a look at. Two inputs may share a storage."""
    behind: dict[fx.Node, fx.Node] = {}
    storage_of = {node: lowered.graph.values[value].storage for node, value in lowered.value_of_node.items()}
    for node, storage in storage_of.items():
        if node.op == "placeholder":
            behind[node] = node
            continue
        looked_at = (source for source in _sources(node) if source in behind and storage_of[source] == storage)
        if (source := next(looked_at, None)) is not None:
            behind[node] = behind[source]
    return behind


def _sources(node: fx.Node) -> Sequence[fx.Node]:
    """What its op takes, also if the node is one of several results."""
    return (node.all_input_nodes[0] if is_getitem(node) else node).all_input_nodes


def nodes_by_storage(lowered: Lowered) -> Mapping[int, Sequence[fx.Node]]:
    """The joint nodes whose values live in each storage, in order of birth."""
    nodes: dict[int, list[fx.Node]] = defaultdict(list)
    for node, value in lowered.value_of_node.items():
        nodes[lowered.graph.values[value].storage].append(node)
    return nodes


def _results_of_moments(lowered: Lowered) -> Mapping[fx.Node, Sequence[fx.Node]]:
    return {node: [user for user in node.users if is_getitem(user)] for node in lowered.nodes}
