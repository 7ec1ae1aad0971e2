"""Cut a planned joint graph into the two programs that run: forward, and later backward.

Enters: a tidy joint graph, its lowering, and a plan. Leaves: two graph modules in the calling convention of AOTAutograd
(forward returns its outputs and then what backward needs; backward takes that and then the tangents) and, for every
node that starts an instruction, its position.

The one idea: after `capture/tidy/passes.py` the joint graph is in execution order with whole storages crossing from
forward to backward, and `plan/judge/schedule.py` has put the plan in order too, so cutting is one walk over the
instructions. Linear in their number, where PyTorch's own partitioner is quadratic. A storage that is away when forward
ends crosses through the step's tickets, all others through autograd.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import fx

from vdnn.capture.copied_graph import GraphWithoutCode
from vdnn.capture.lower import Lowered, mutated_by
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
from vdnn.ir import NO_USE, Phase
from vdnn.plan.judge.schedule import Instruction, Kind
from vdnn.plan.model.actions import Encode, EncodeOffload, Offload
from vdnn.plan.plan import Plan
from vdnn.rewrite.half_writer import HalfWriter, inputs_behind, nodes_by_storage, random_replays
from vdnn.runtime.running_step import open_handle
from vdnn.torch_private import SavedForBackwardsAOTOutput

HANDLE = "vdnn_handle"
RANDOM_STATE_NBYTES = 5056
"""Of the CPU's generator. AOTAutograd wants a size; nothing depends on it where a device's is another."""


@dataclass(frozen=True)
class Half:
    """One of the two programs, as a graph without code. `position_of` gives the position of the instruction that a node
    starts, `storage_of` the storage that a node's tensor lies in."""

    name: str
    module: fx.GraphModule
    position_of: Mapping[fx.Node, int]
    storage_of: Mapping[fx.Node, int]

    @cached_property
    def looks_at(self) -> Mapping[int, Sequence[fx.Node]]:
        """The nodes whose tensors lie in each storage."""
        looks: dict[int, list[fx.Node]] = defaultdict(list)
        for node, storage in self.storage_of.items():
            looks[storage].append(node)
        return looks

    @property
    def num_unchecked(self) -> int:
        """How many of backward's arguments from forward skip autograd's version check."""
        return sum(map(is_unchecked_save, self.module.graph.find_nodes(op="placeholder")))

    @property
    def num_saved(self) -> int:
        """How many of backward's arguments come from forward; the tangents follow."""
        return sum(
            not is_tangent(node) or node.name == HANDLE for node in self.module.graph.find_nodes(op="placeholder")
        )

    @property
    def overwrites(self) -> list[int]:
        """Which of backward's arguments its program writes into: what forward saved, and nobody reads again."""
        written = {self.storage_of.get(source) for node in self.module.graph.nodes for source in mutated_by(node)}
        placeholders = self.module.graph.find_nodes(op="placeholder")
        found = [position for position, node in enumerate(placeholders) if self.storage_of.get(node, -1) in written]
        assert all(position < self.num_saved for position in found), "a gradient that arrives is the caller's"
        return found


def cut(joint: fx.GraphModule, lowered: Lowered, plan: Plan, num_forward_outputs: int) -> tuple[Half, Half]:
    """Forward and backward as the plan says."""
    program = list(enumerate(plan.program))
    boundary = plan.problem.graph.num_forward
    forward = [(position, instruction) for position, instruction in program if instruction.moment < boundary]
    backward = program[len(forward) :]
    outputs: Sequence[Any] = joint.graph.output_node().args[0]  # type: ignore[assignment]
    gradients = outputs[num_forward_outputs:]
    saved = _saved(lowered, plan, [i for _, i in forward], [i for _, i in backward], gradients)
    later, saved = _backward(HalfWriter(joint, lowered, plan), joint, backward, saved, gradients)
    first = _forward(HalfWriter(joint, lowered, plan), joint, forward, saved, outputs[:num_forward_outputs])
    return first, later


@dataclass(frozen=True, slots=True)
class SavedEncoding:
    """The encoding of one decision, where it crosses from forward to backward."""

    decision: int
    nbytes: int

    @property
    def name(self) -> str:
        return f"vdnn_encoding_{self.decision}"


@dataclass(frozen=True, slots=True)
class RandomState:
    """Where the generator stood before a random op that backward runs again."""

    moment: int

    @property
    def name(self) -> str:
        return f"vdnn_random_state_{self.moment}"


CrossingValue = fx.Node | SavedEncoding | RandomState | None
"""What crosses from forward to backward through autograd. None stands for the handle."""


def _saved(
    lowered: Lowered,
    plan: Plan,
    forward: Sequence[Instruction],
    backward: Sequence[Instruction],
    gradients: Sequence[Any],
) -> list[CrossingValue]:
    """Everything that crosses: the handle, nodes in order of first reading, encodings in the order they are written.

    What must skip autograd's version check comes last: AOTAutograd counts those from the end."""
    crossing = dict.fromkeys(
        node for node in _first_reads(lowered, _away_after(plan, forward), backward) if _crosses(node)
    )
    crossing.update((node, None) for node in gradients if isinstance(node, fx.Node) and _crosses(node))
    checked = [node for node in crossing if not is_unchecked_save(node)]
    ours: list[CrossingValue] = [*_encodings_after(plan, forward), *map(RandomState, random_replays(plan))]
    return [None, *checked, *ours, *(node for node in crossing if is_unchecked_save(node))]


def _encodings_after(plan: Plan, program: Sequence[Instruction]) -> list[SavedEncoding]:
    """The encodings that are on the device when the program ends."""
    there: dict[int, SavedEncoding] = {}
    for instruction in program:
        action = plan.decisions[instruction.decision].action if instruction.decision >= 0 else None
        if not isinstance(action, Encode | EncodeOffload):
            continue
        if instruction.kind in (Kind.ENCODE, Kind.FETCH):
            there[instruction.decision] = SavedEncoding(instruction.decision, action.nbytes)
        elif instruction.kind in (Kind.LEAVE, Kind.DECODE):
            there.pop(instruction.decision)
    return list(there.values())


def _away_after(plan: Plan, program: Sequence[Instruction]) -> set[int]:
    """The storages that are not on the device when the program ends. What is fetched encoded is not there yet."""
    away: set[int] = set()
    for instruction in program:
        if instruction.kind in (Kind.LEAVE, Kind.ENCODE):
            away.add(instruction.storage)
        elif instruction.kind is Kind.DECODE or (
            instruction.kind is Kind.FETCH and isinstance(plan.decisions[instruction.decision].action, Offload)
        ):
            away.discard(instruction.storage)
        elif instruction.kind is Kind.REPLAY:
            away.difference_update(instruction.keeps)
    return away


def _first_reads(lowered: Lowered, away: set[int], backward: Sequence[Instruction]) -> Iterator[fx.Node]:
    """The nodes that backward reads as forward left them: not those of storages that are away then, or fetched
    since."""
    elsewhere = set(away)
    nodes_in, behind = nodes_by_storage(lowered), inputs_behind(lowered)
    node_of = {value: node for node, value in lowered.value_of_node.items()}
    for instruction in backward:
        if instruction.kind in (Kind.SEND, Kind.ENCODE) and instruction.storage not in elsewhere:
            yield from [node for node in nodes_in[instruction.storage] if _crosses(node)][-1:]
        if instruction.kind in (Kind.LEAVE, Kind.FETCH, Kind.ENCODE, Kind.DECODE):
            elsewhere.add(instruction.storage)
        elif instruction.kind is Kind.RUN:
            for node in lowered.nodes[instruction.op].all_input_nodes:
                value = lowered.value_of_node.get(node)
                if value is None or lowered.graph.values[value].storage not in elsewhere:
                    yield node
        elif instruction.kind is Kind.REPLAY:
            for read in lowered.graph.replayed(instruction.op)[0]:
                storage = lowered.graph.values[read.value].storage
                if storage not in elsewhere and read.need not in NO_USE:
                    # A replay looks at the whole storage: any value of it will do, of an input's the input itself.
                    node = node_of.get(read.value, nodes_in[storage][0])
                    yield behind.get(node, nodes_in[storage][0])
            elsewhere.update(instruction.keeps)


def _crosses(node: fx.Node) -> bool:
    # Constants belong to the module and are at hand in both halves.
    return phase_of(node) is Phase.FORWARD and node.op != "get_attr"


def _forward(
    writer: HalfWriter,
    joint: fx.GraphModule,
    program: Sequence[tuple[int, Instruction]],
    saved: Sequence[CrossingValue],
    outputs: Sequence[Any],
) -> Half:
    for node in joint.graph.find_nodes(op="placeholder"):
        if not is_tangent(node):
            writer.copies[node] = writer.graph.node_copy(node)
    writer.constants()
    for position, instruction in program:
        writer.write(position, instruction)
    handle = writer.graph.create_node("call_function", open_handle, name=HANDLE)
    _describe_handle(handle, joint, Phase.FORWARD)
    for item in saved:
        if isinstance(item, RandomState):
            _describe(_state_of(writer, item), joint, Phase.FORWARD, RANDOM_STATE_NBYTES, torch.uint8)
        if isinstance(item, SavedEncoding):
            _describe(writer.encodings[item.decision], joint, Phase.FORWARD, item.nbytes, torch.uint8)
    stash = [_stashed(writer, handle, item) for item in saved]
    output = writer.graph.output((*fx.map_arg(list(outputs), writer.read), *stash))
    descriptors = output_descriptors(joint.graph.output_node())[: len(outputs)]
    set_output_descriptors(output, [*descriptors, *map(SavedForBackwardsAOTOutput, range(len(stash)))])
    return _half("forward", writer, joint)


def _backward(
    writer: HalfWriter,
    joint: fx.GraphModule,
    program: Sequence[tuple[int, Instruction]],
    saved: Sequence[CrossingValue],
    gradients: Sequence[Any],
) -> tuple[Half, list[CrossingValue]]:
    """The half, and what of `saved` it uses: of several values of one storage, one is enough."""
    placeholders: dict[CrossingValue, fx.Node] = {}
    for item in saved:
        name = HANDLE if item is None else item.name
        placeholders[item] = placeholder = writer.graph.create_node("placeholder", name, name=name)
        if item is None:
            _describe_handle(placeholder, joint, Phase.BACKWARD)
        elif isinstance(item, SavedEncoding):
            _describe(placeholder, joint, Phase.FORWARD, item.nbytes, torch.uint8)
            writer.encodings[item.decision] = placeholder
        elif isinstance(item, RandomState):
            _describe(placeholder, joint, Phase.FORWARD, RANDOM_STATE_NBYTES, torch.uint8)
            writer.random_states[item.moment] = placeholder
        else:
            placeholder.meta.update(item.meta)
            writer.copies[item] = placeholder
    for node in joint.graph.find_nodes(op="placeholder"):
        if is_tangent(node):
            writer.copies[node] = writer.graph.node_copy(node)
    writer.constants()
    for position, instruction in program:
        writer.write(position, instruction)
    output = writer.graph.output(tuple(fx.map_arg(list(gradients), writer.read)))
    set_output_descriptors(output, output_descriptors(joint.graph.output_node())[-len(gradients) :])
    for item in [item for item in saved if item is not None and not placeholders[item].users]:
        writer.graph.erase_node(placeholders.pop(item))
    return _half("backward", writer, joint), list(placeholders)


def _half(name: str, writer: HalfWriter, joint: fx.GraphModule) -> Half:
    module = GraphWithoutCode(joint, writer.graph)
    return Half(name, module, writer.position_of, writer.storage_of_copies())


def _stashed(writer: HalfWriter, handle: fx.Node, item: CrossingValue) -> fx.Node:
    if item is None:
        return handle
    if isinstance(item, RandomState):
        return _state_of(writer, item)
    return writer.encodings[item.decision] if isinstance(item, SavedEncoding) else writer.read(item)


def _state_of(writer: HalfWriter, item: RandomState) -> fx.Node:
    state = writer.random_states[item.moment]
    assert state is not None, f"op {item.moment} draws random numbers in forward"
    return state


def _describe_handle(node: fx.Node, joint: fx.GraphModule, phase: Phase) -> None:
    _describe(node, joint, phase, 2, torch.int64)


def _describe(node: fx.Node, joint: fx.GraphModule, phase: Phase, count: int, dtype: torch.dtype) -> None:
    """What AOTAutograd wants to know of a tensor that is no traced node: its layout and its phase."""
    with fake_mode_of(joint.graph):
        set_value(node, torch.empty(count, dtype=dtype))
    set_phase(node, phase)
