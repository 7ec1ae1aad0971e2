"""Train a model twice, plain and through vdnn, and compare everything that training leaves behind, bit for bit.

Enters: a training step and the model it trains. Leaves: an `Outcome`; `assert_same` lists every difference of two of
them by name. The tests of this folder plan for a named device, so that none stops to measure the machine it runs on.
"""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import vdnn
from vdnn.api import session_of
from vdnn.ir import Graph, Role
from vdnn.plan.model.timeline import ROLES, Timeline
from vdnn.runtime.executor import Executor
from where import rng_state

virtualize = partial(vdnn.virtualize, hardware="titan-x")
plan = partial(vdnn.plan, hardware="titan-x")

Step = Callable[..., Any]
SEED = 1


@dataclass
class Outcome:
    """What a few steps of training leave behind, by name."""

    losses: list[Tensor] = field(default_factory=list)
    tensors: dict[str, Tensor | None] = field(default_factory=dict)
    """Gradients of every step, then parameters and buffers after the last."""
    rng_state: Tensor = field(default_factory=lambda: torch.empty(0))


def train(step: Step, model: nn.Module, args: tuple[Any, ...], steps: int = 3) -> Outcome:
    """`steps` steps of SGD with momentum. What `step` returns (the loss, or a tuple that begins with it) is held until
    its backward is over, as a training loop holds it."""
    torch.manual_seed(SEED)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    outcome = Outcome()
    for number in range(steps):
        optimizer.zero_grad()
        returned = step(*args)
        loss = returned[0] if isinstance(returned, tuple) else returned
        loss.backward()
        outcome.losses.append(loss.detach().clone())
        outcome.tensors |= {f"step {number}: gradient of {name}": grad for name, grad in gradients(model).items()}
        optimizer.step()
    outcome.tensors |= state(model)
    outcome.rng_state = rng_state()
    return outcome


def gradients(model: nn.Module) -> dict[str, Tensor | None]:
    return {name: _copy(parameter.grad) for name, parameter in model.named_parameters()}


def state(model: nn.Module) -> dict[str, Tensor | None]:
    return {name: _copy(tensor) for name, tensor in (*model.named_parameters(), *model.named_buffers())}


def _copy(tensor: Tensor | None) -> Tensor | None:
    """With its strides, which `clone` keeps for dense tensors only."""
    if tensor is None or tensor.layout is not torch.strided:
        return None if tensor is None else tensor.detach().clone()
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype).copy_(tensor.detach())


def with_loss_outside(model: nn.Module, loss: Callable[[Any, Tensor], Tensor]) -> Step:
    """A step that keeps the model's output alive beside the loss."""

    def step(*args: Tensor) -> tuple[Tensor, Any]:
        *inputs, target = args
        output = model(*inputs)
        return loss(output, target), output

    return step


def differences(plain: Mapping[str, Any], virtual: Mapping[str, Any]) -> Iterator[str]:
    for name in {**plain, **virtual}:
        difference = _difference(plain.get(name), virtual.get(name))
        if difference:
            yield f"{name}: {difference}"


def _difference(plain: Any, virtual: Any) -> str | None:
    if not isinstance(plain, Tensor) or not isinstance(virtual, Tensor):
        return None if plain is virtual or (type(plain), plain) == (type(virtual), virtual) else f"{plain} / {virtual}"
    if plain.layout is not virtual.layout:
        return f"layout {plain.layout} / {virtual.layout}"
    if plain.layout is not torch.strided:
        return _difference(plain.to_dense(), virtual.to_dense())
    kinds = [(t.shape, t.dtype, t.stride()) for t in (plain, virtual)]
    if kinds[0] != kinds[1]:
        return f"{kinds[0]} / {kinds[1]}"
    if torch.equal(plain, virtual) or _equal_but_for_nan(plain, virtual):
        return None
    return f"values differ by up to {(plain.double() - virtual.double()).abs().max():.3g}"


def _equal_but_for_nan(plain: Tensor, virtual: Tensor) -> bool:
    """Where one is not a number the other is none either; nan equals nothing, not even itself."""
    same_places = torch.equal(plain.isnan(), virtual.isnan())
    return same_places and torch.equal(plain.nan_to_num(), virtual.nan_to_num())


def assert_same(plain: Outcome, virtual: Outcome) -> None:
    losses = [{f"loss of step {i}": loss for i, loss in enumerate(o.losses)} for o in (plain, virtual)]
    rng = [{"RNG state": o.rng_state} for o in (plain, virtual)]
    found = [*differences(*losses), *differences(plain.tensors, virtual.tensors), *differences(*rng)]
    assert not found, "plain / virtual:\n" + "\n".join(found[:12])


def assert_same_state(plain: nn.Module, virtual: nn.Module) -> None:
    """Gradients, parameters and buffers, as they are now."""
    found = [*differences(gradients(plain), gradients(virtual)), *differences(state(plain), state(virtual))]
    assert not found, "plain / virtual:\n" + "\n".join(found[:12])


def both(plain: Callable[..., Any], virtual: Callable[..., Any], do: Callable[[Any], Any]) -> tuple[Any, Any]:
    """`do` with each of the two from the same seed. The generator must end in the same state."""
    torch.manual_seed(SEED)
    expected = do(plain)
    state_after = rng_state()
    torch.manual_seed(SEED)
    found = do(virtual)
    assert torch.equal(state_after, rng_state()), "a generator was advanced differently"
    return expected, found


def pair(model: nn.Module, **options: Any) -> tuple[nn.Module, nn.Module]:
    """A model, and a virtualized copy of it."""
    return copy.deepcopy(model), virtualize(copy.deepcopy(model), **options)


def check(model: nn.Module, do: Callable[[Any], Any], **options: Any) -> tuple[Any, Any]:
    """`do` with the model and with its virtualized copy: gradients and state must be the same. Returns both results."""
    plain, virtual = pair(model, **options)
    returned = both(plain, virtual, do)
    assert_same_state(plain, virtual)
    return returned


def executors(virtual: Any) -> list[Executor]:
    return session_of(virtual).executors


def only_graph(virtual: Any) -> Graph:
    (executor,) = executors(virtual)
    return executor.plan.problem.graph


def tensor_nbytes(timeline: Timeline) -> np.ndarray[Any, Any]:
    """Bytes of tensors at every step: all roles but workspace, which lives inside ops where no tracker sees it."""
    rows = [row for row, role in enumerate(ROLES) if role is not Role.WORKSPACE]
    return timeline.nbytes[timeline.device][rows].sum(axis=0)


def assert_measured_as_simulated(virtual: Any) -> None:
    """At every step of every captured graph the tracker counted what the simulator said, to the byte."""
    assert executors(virtual), "nothing was captured"
    for executor in executors(virtual):
        graph, measured = executor.plan.problem.graph, executor.measured.timeline
        assert measured is not None, f"{graph.name} never ran a whole step"
        surplus = tensor_nbytes(measured) - tensor_nbytes(executor.plan.timeline)
        wrong = [f"{at} {measured.labels[at]}: measured {surplus[at]:+d} bytes" for at in np.flatnonzero(surplus)]
        assert not wrong, f"{graph.name}: {len(wrong)} of {len(surplus)} steps differ:\n" + "\n".join(wrong[:8])


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Whatever dies in here dies by its reference count."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
