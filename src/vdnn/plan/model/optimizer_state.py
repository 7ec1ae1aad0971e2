"""What optimizers keep between steps, as storages of a graph.

Enters: a graph and an optimizer's name. Leaves: the graph with the optimizer's state among its inputs. Sizes are those
of torch.optim: whole copies of each parameter, and for optimizers that count steps one float32 per parameter. The
table is the one place that names optimizers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from vdnn.errors import InvalidInput
from vdnn.ir import Graph, Role, Storage, Value

MOMENTUM = 0.9  # the value of the papers' training runs (AlexNet, VGG, ResNet)


@dataclass(frozen=True, slots=True)
class OptimizerKind:
    """A class of torch.optim with the arguments that make it this optimizer, and what it keeps of each parameter:
    `copies` of its size by name, and whether a count of steps."""

    torch_class: str
    copies: tuple[str, ...] = ()
    counts_steps: bool = False
    arguments: Mapping[str, float] = field(default_factory=dict)


OPTIMIZERS = {
    "sgd": OptimizerKind("SGD"),
    "momentum": OptimizerKind("SGD", ("momentum_buffer",), arguments={"momentum": MOMENTUM}),
    "rmsprop": OptimizerKind("RMSprop", ("square_avg",), counts_steps=True),
    "adagrad": OptimizerKind("Adagrad", ("sum",), counts_steps=True),
    "adam": OptimizerKind("Adam", ("exp_avg", "exp_avg_sq"), counts_steps=True),
    "adamw": OptimizerKind("AdamW", ("exp_avg", "exp_avg_sq"), counts_steps=True),
}
NO_OPTIMIZER = "none"

STEP_NBYTES = 4  # torch.optim keeps `step` as a float32 tensor of no dimension


def optimizer_named(name: str | None) -> OptimizerKind | None:
    """The optimizer, or None for nobody; InvalidInput with the names there are."""
    known = (name or NO_OPTIMIZER).lower()
    if known == NO_OPTIMIZER:
        return None
    if known not in OPTIMIZERS:
        raise InvalidInput(
            f"unknown optimizer {name!r}: choose one of {', '.join(sorted((*OPTIMIZERS, NO_OPTIMIZER)))}"
        )
    return OPTIMIZERS[known]


def with_optimizer_state(graph: Graph, optimizer: str | None) -> Graph:
    """The graph, with what `optimizer` keeps for its parameters that get gradients."""
    kind = optimizer_named(optimizer)
    if kind is None:
        return graph
    storages, values, inputs = list(graph.storages), list(graph.values), list(graph.inputs)
    trained = {storage.name for storage in graph.storages if storage.role is Role.GRADIENT}
    for parameter in graph.storages:
        if parameter.role is not Role.PARAMETER or f"gradient of {parameter.name}" not in trained:
            continue
        sizes = [(copy, parameter.nbytes, parameter.dtype) for copy in kind.copies]
        sizes += [("step", STEP_NBYTES, "float32")] if kind.counts_steps else []
        for what, nbytes, dtype in sizes:
            name = f"{parameter.name}.{what}"
            inputs.append(len(values))
            values.append(Value(name, len(storages), (), dtype))
            storages.append(Storage(name, nbytes, Role.OPTIMIZER_STATE, dtype, (len(values) - 1,)))
    return replace(graph, storages=tuple(storages), values=tuple(values), inputs=tuple(inputs))
