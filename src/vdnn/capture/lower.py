"""From a tidy joint graph to `ir.Graph`.

Enters: a joint fx graph in execution order, and what its inputs are. Leaves: a `Lowered`: the graph in our own
vocabulary, and for each of its ops the fx node that runs it, which is all that rewriting needs to find its way back.

The one idea: storages are told apart by the fake tensors' own storages, so views and aliases are seen as PyTorch sees
them. A result of an in-place op lives in the storage it was written to, whatever storage the tracer invented for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.utils.flop_counter import flop_registry

from vdnn.capture.nodes import (
    StorageKey,
    arguments_of,
    descriptor_of,
    is_getitem,
    is_op,
    is_tangent,
    is_view,
    module_paths,
    output_descriptors,
    phase_of,
    storage_key,
    tensor_of,
    tensors_of,
    value_of,
)
from vdnn.capture.ops.information import alphabet_of, reads_encoded, wanted
from vdnn.capture.ops.kernel_storages import least_storage_nbytes
from vdnn.capture.ops.traits import traits_of
from vdnn.hardware.where import CPU
from vdnn.ir import Graph, Information, Need, Op, Phase, Read, Role, Storage, Trait, Value
from vdnn.torch_private import OpOverload, schema_of

_CPU_KERNELS = frozenset({"cpu", "meta"})
"""Tensors of these devices are laid out as the CPU's kernels do it."""


@dataclass(frozen=True, slots=True)
class InputInfo:
    """What a placeholder of the joint graph is to the model."""

    name: str
    role: Role


@dataclass(frozen=True)
class Lowered:
    """`nodes[t]` runs op t of `graph`. `value_of_node` finds the value of any node with a single tensor result."""

    graph: Graph
    nodes: tuple[fx.Node, ...]
    value_of_node: Mapping[fx.Node, int]
    where: torch.device = CPU
    """Where the step computes. What it has on the CPU beside an accelerator takes no bytes there."""


@dataclass
class _Builder:
    """Values and storages as they are met. Storage roles are settled as soon as something says what a storage is
    for."""

    where: torch.device = CPU
    values: list[Value] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    nbytes: list[int] = field(default_factory=list)
    roles: list[Role] = field(default_factory=list)
    dtypes: list[str] = field(default_factory=list)
    members: list[list[int]] = field(default_factory=list)
    writers: list[list[fx.Node]] = field(default_factory=list)
    storage_of: dict[StorageKey, int] = field(default_factory=dict)

    def storage(self, tensor: torch.Tensor, name: str, role: Role) -> int:
        key = storage_key(tensor)
        if key not in self.storage_of:
            self.storage_of[key] = len(self.names)
            self.names.append(name)
            self.nbytes.append(tensor.untyped_storage().nbytes() if self.is_here(tensor) else 0)
            self.roles.append(role)
            self.dtypes.append(_dtype_name(tensor))
            self.members.append([])
            self.writers.append([])
        return self.storage_of[key]

    def is_here(self, tensor: torch.Tensor) -> bool:
        return self.where == CPU or tensor.device.type == self.where.type

    def value(self, tensor: torch.Tensor, name: str, role: Role) -> int:
        storage = self.storage(tensor, name, role)
        value = len(self.values)
        self.values.append(Value(name, storage, tuple(tensor.shape), _dtype_name(tensor)))
        self.members[storage].append(value)
        return value

    def takes_at_least(self, value: int, nbytes: int) -> None:
        """The storage of a new value, where its kernel takes more than was traced."""
        storage = self.values[value].storage
        self.nbytes[storage] = max(self.nbytes[storage], nbytes)

    def lives_in(self, tensor: torch.Tensor, storage: int) -> None:
        self.storage_of[storage_key(tensor)] = storage

    def written_by(self, node: fx.Node, values: Sequence[int]) -> None:
        for storage in dict.fromkeys(self.values[value].storage for value in values):
            self.writers[storage].append(node)

    def alphabet(self, storage: int) -> tuple[float, ...]:
        return alphabet_of({self.values[value].dtype for value in self.members[storage]}, self.writers[storage])

    def storages(self) -> tuple[Storage, ...]:
        columns = zip(self.names, self.nbytes, self.roles, self.dtypes, self.members, strict=True)
        return tuple(
            Storage(name, nbytes, role, dtype, tuple(members), self.alphabet(position))
            for position, (name, nbytes, role, dtype, members) in enumerate(columns)
        )


def lower(
    joint: fx.GraphModule,
    inputs: Mapping[fx.Node, InputInfo],
    num_forward_outputs: int,
    *,
    name: str = "step",
    where: torch.device = CPU,
) -> Lowered:
    """The joint graph as storages, values and ops. Placeholders that `inputs` does not describe are plain inputs."""
    builder = _Builder(where)
    value_of_node: dict[fx.Node, int] = {}
    results: dict[fx.Node, list[int | None]] = {}
    ops: list[Op] = []
    nodes: list[fx.Node] = []
    graph_inputs: list[int] = []
    tangents: list[int] = []
    modules = module_paths(joint.graph)

    for node in joint.graph.nodes:
        if node.op in ("placeholder", "get_attr"):
            tensor = tensor_of(node)
            if tensor is None:
                continue
            default_role = (
                Role.GRADIENT_MAP if is_tangent(node) else Role.BUFFER if node.op == "get_attr" else Role.INPUT
            )
            info = inputs.get(node, InputInfo(node.name, default_role))
            value = builder.value(tensor, info.name, info.role)
            value_of_node[node] = value
            (tangents if is_tangent(node) else graph_inputs).append(value)
        elif is_getitem(node):
            source, position = node.args
            value_or_none = results.get(source, [])[position] if source in results else None
            if value_or_none is not None:
                value_of_node[node] = value_or_none
        elif is_op(node):
            op, written = _lower_op(node, builder, value_of_node, modules[node])
            ops.append(op)
            nodes.append(node)
            results[node] = written
            if tensor_of(node) is not None and written[0] is not None:
                value_of_node[node] = written[0]

    output = joint.graph.output_node()
    names = {descriptor_of(node): info.name for node, info in inputs.items()}
    held = _settle_outputs(output, num_forward_outputs, builder, value_of_node, names)
    # The gradient of a scalar is what `loss.backward()` starts from, and that call holds it to the end. Others are
    # autograd's, which lets go.
    held += tuple(value for value in tangents if builder.values[value].shape == ())
    graph = Graph(
        name, tuple(ops), tuple(builder.values), builder.storages(), tuple(graph_inputs), tuple(tangents), held
    )
    return Lowered(graph, tuple(nodes), value_of_node, where)


def _lower_op(
    node: fx.Node, builder: _Builder, value_of_node: Mapping[fx.Node, int], module: str
) -> tuple[Op, list[int | None]]:
    phase = phase_of(node) or Phase.FORWARD
    role = Role.FEATURE_MAP if phase is Phase.FORWARD else Role.GRADIENT_MAP
    mutated = mutated_by(node)
    tensors = tensors_of(node)
    # A mutable op returns what it was told to write into: those results live where the arguments live.
    returned = [source for source in mutated if is_returned(node)]
    for tensor, source in zip((t for t in tensors if t is not None), returned, strict=False):
        builder.lives_in(tensor, builder.values[value_of_node[source]].storage)
    written: list[int | None] = [
        None if tensor is None else builder.value(tensor, _result_name(node, position, len(tensors)), role)
        for position, tensor in enumerate(tensors)
    ]
    if written[0] is not None and tensors[0] is not None and not mutated and tensors[0].device.type in _CPU_KERNELS:
        sources = {source: value_of_node[source] for source in node.all_input_nodes if source in value_of_node}
        storages = {source: builder.nbytes[builder.values[value].storage] for source, value in sources.items()}
        builder.takes_at_least(written[0], least_storage_nbytes(node, storages))
    effects = [
        builder.value(tensor_of(source), f"{node.name}.{source.name}", role)  # type: ignore[arg-type]
        for source in mutated
        if source not in returned
    ]
    traits = traits_of(node.target)
    if _draws_from_own_generator(node):
        traits |= {Trait.MUST_KEEP}
    if is_view(node):
        traits |= {Trait.VIEW}
    writes = tuple(value for value in written if value is not None) + tuple(effects)
    if Trait.VIEW not in traits:
        builder.written_by(node, writes)
    op = Op(
        name=node.name,
        target=_target_name(node),
        phase=phase,
        module=module,
        reads=_reads(node, value_of_node, builder),
        writes=writes,
        flops=0 if Trait.VIEW in traits else _flops(node),
        traits=traits,
    )
    return op, written


def _draws_from_own_generator(node: fx.Node) -> bool:
    """A generator that the model brings along: replays put back the device's own only, so such an op runs once."""
    return isinstance(node.target, OpOverload) and arguments_of(node).get("generator") is not None


def _reads(node: fx.Node, value_of_node: Mapping[fx.Node, int], builder: _Builder) -> tuple[Read, ...]:
    """Each value once, with what all of the arguments it stands in take of it."""
    if not isinstance(node.target, OpOverload):
        return tuple(Read(value_of_node[source]) for source in node.all_input_nodes if source in value_of_node)
    taken = wanted(node)
    sources: dict[int, fx.Node] = {}
    reads: dict[int, Information] = {}
    for name, argument in arguments_of(node).items():
        for source in _nodes_in(argument):
            if source in value_of_node:
                value, information = value_of_node[source], taken.get(name, Information(Need.ALL))
                reads[value] = reads.get(value, information).joined(information)
                sources[value] = source
    return tuple(
        Read(value, taken.need, taken.detail, _reads_encoded(node, sources[value], builder, value))
        for value, taken in reads.items()
    )


def _reads_encoded(node: fx.Node, source: fx.Node, builder: _Builder, value: int) -> bool:
    return reads_encoded(node, source, lambda: builder.alphabet(builder.values[value].storage))


def _nodes_in(argument: Any) -> list[fx.Node]:
    found: list[fx.Node] = []

    def note(node: fx.Node) -> fx.Node:
        found.append(node)
        return node

    fx.map_arg(argument, note)
    return found


def mutated_by(node: fx.Node) -> list[fx.Node]:
    """The arguments a node writes into, in schema order."""
    if not isinstance(node.target, OpOverload) or not schema_of(node.target).is_mutable:
        return []
    arguments = arguments_of(node)
    written = [a.name for a in schema_of(node.target).arguments if a.alias_info is not None and a.alias_info.is_write]
    return [source for name in written for source in _nodes_in(arguments.get(name))]


def is_returned(node: fx.Node) -> bool:
    """Whether an op returns what it writes into."""
    assert isinstance(node.target, OpOverload), f"{node} has no schema"
    return any(r.alias_info is not None and r.alias_info.is_write for r in schema_of(node.target).returns)


def _settle_outputs(
    output: fx.Node,
    num_forward_outputs: int,
    builder: _Builder,
    value_of_node: Mapping[fx.Node, int],
    input_names: Mapping[object, str],
) -> tuple[int, ...]:
    """Name the roles of what the step hands out, and list it: outputs of the forward, then gradients."""
    outputs: Sequence[object] = output.args[0]  # type: ignore[assignment]
    descriptors = output_descriptors(output)
    held: list[int] = []
    for position, node in enumerate(outputs):
        if not isinstance(node, fx.Node) or node not in value_of_node:
            continue
        value = value_of_node[node]
        storage = builder.values[value].storage
        held.append(value)
        if builder.roles[storage] in (Role.FEATURE_MAP, Role.GRADIENT_MAP):
            is_gradient = position >= num_forward_outputs
            builder.roles[storage] = Role.GRADIENT if is_gradient else Role.OUTPUT
            if is_gradient and position < len(descriptors):
                of = getattr(descriptors[position], "grad_of", None)
                builder.names[storage] = f"gradient of {input_names.get(of, node.name)}"
    return tuple(dict.fromkeys(held))


def _result_name(node: fx.Node, position: int, count: int) -> str:
    return node.name if count == 1 else f"{node.name}.{position}"


def _target_name(node: fx.Node) -> str:
    return (
        str(node.target) if isinstance(node.target, OpOverload) else getattr(node.target, "__name__", str(node.target))
    )


def _dtype_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _flops(node: fx.Node) -> int:
    """PyTorch's own counts for matrix products, convolutions and attention; one per result element for everything
    else."""
    if not isinstance(node.target, OpOverload):
        return 0
    counter = flop_registry.get(node.target.overloadpacket)
    if counter is not None:
        args, kwargs = fx.map_arg((node.args, node.kwargs), value_of)
        return int(counter(*args, **kwargs, out_val=value_of(node)))
    return sum(tensor.numel() for tensor in tensors_of(node) if tensor is not None)
