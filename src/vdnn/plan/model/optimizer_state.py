"""What optimizers keep between steps, as storages of a graph.

Enters: a graph and an optimizer's name. Leaves: the graph with the optimizer's state among its inputs. Sizes are those
of torch.optim: whole copies of each parameter, and for optimizers that count steps one float32 per parameter.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from vdnn.errors import InvalidInput
from vdnn.ir import Graph, Role, Storage, Value


@dataclass(frozen=True, slots=True)
class StateShape:
    copies: tuple[str, ...] = ()
    counts_steps: bool = False


OPTIMIZERS = {
    "none": StateShape(),
    "sgd": StateShape(),
    "momentum": StateShape(("momentum_buffer",)),
    "rmsprop": StateShape(("square_avg",), counts_steps=True),
    "adagrad": StateShape(("sum",), counts_steps=True),
    "adam": StateShape(("exp_avg", "exp_avg_sq"), counts_steps=True),
    "adamw": StateShape(("exp_avg", "exp_avg_sq"), counts_steps=True),
}

STEP_NBYTES = 4  # torch.optim keeps `step` as a float32 tensor of no dimension


def with_optimizer_state(graph: Graph, optimizer: str | None) -> Graph:
    """The graph, with what `optimizer` keeps for its parameters that get gradients."""
    shape = OPTIMIZERS.get((optimizer or "none").lower())
    if shape is None:
        raise InvalidInput(f"unknown optimizer {optimizer!r}: choose one of {', '.join(sorted(OPTIMIZERS))}")
    storages, values, inputs = list(graph.storages), list(graph.values), list(graph.inputs)
    trained = {storage.name for storage in graph.storages if storage.role is Role.GRADIENT}
    for parameter in graph.storages:
        if parameter.role is not Role.PARAMETER or f"gradient of {parameter.name}" not in trained:
            continue
        sizes = [(copy, parameter.nbytes, parameter.dtype) for copy in shape.copies]
        sizes += [("step", STEP_NBYTES, "float32")] if shape.counts_steps else []
        for what, nbytes, dtype in sizes:
            name = f"{parameter.name}.{what}"
            inputs.append(len(values))
            values.append(Value(name, len(storages), (), dtype))
            storages.append(Storage(name, nbytes, Role.OPTIMIZER_STATE, dtype, (len(values) - 1,)))
    return replace(graph, storages=tuple(storages), values=tuple(values), inputs=tuple(inputs))
