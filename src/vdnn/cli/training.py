"""The training loop of `vdnn train`, alone or beside a twin in plain PyTorch that has to agree bit for bit.

Enters: a workload, the callable that runs its step, an optimizer. Leaves: a `TrainingRun` with losses, wall times and
every difference that was found. The one idea of the comparison: both sides start each training step from the same state
of the random generator and take it in turn, so a difference is found in the step that makes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from vdnn.hardware.where import CPU, own_generators, where_of
from vdnn.models import Workload
from vdnn.plan.model.optimizer_state import OPTIMIZERS
from vdnn.printable import printable


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """What came of the steps. `num_compared` counts the tensors compared, `differences` names those that differ."""

    losses: tuple[float, ...]
    step_times_s: tuple[float, ...]
    plain_step_times_s: tuple[float, ...] = ()
    num_compared: int = 0
    differences: tuple[str, ...] = ()


@dataclass(frozen=True)
class Trainee:
    """One model under training: what computes its loss, and what updates it."""

    model: nn.Module
    step: Callable[..., Tensor]
    args: tuple[Tensor, ...]
    optimizer: torch.optim.Optimizer

    @property
    def where(self) -> torch.device:
        return where_of(self.model.named_parameters())

    def train_once(self) -> tuple[Tensor, float]:
        """One training step: the loss, and the wall time of forward, backward and update."""
        self.optimizer.zero_grad(set_to_none=True)
        begin = perf_counter()
        loss = self.step(*self.args)
        loss.backward()
        self.optimizer.step()
        if loss.device.type != "cpu":
            torch.accelerator.synchronize(loss.device)
        return loss.detach(), perf_counter() - begin

    def state(self) -> dict[str, Tensor]:
        """Everything a training step leaves behind, by name."""
        state: dict[str, Tensor] = {f"parameter {name}": parameter for name, parameter in self.model.named_parameters()}
        state |= {f"buffer {name}": buffer for name, buffer in self.model.named_buffers()}
        grads = ((name, parameter.grad) for name, parameter in self.model.named_parameters())
        state |= {f"gradient of {name}": grad for name, grad in grads if grad is not None}
        return {printable(name): tensor for name, tensor in state.items()}


def make_optimizer(name: str, model: nn.Module, lr: float) -> torch.optim.Optimizer:
    kind = OPTIMIZERS[name]
    made: torch.optim.Optimizer = getattr(torch.optim, kind.torch_class)(model.parameters(), lr=lr, **kind.arguments)
    return made


def twin_of(workload: Workload, load_again: Callable[[], Workload], optimizer: str, lr: float) -> Trainee:
    """The same model once more, with the same weights and the same batch, to be run by plain PyTorch."""
    twin = load_again()
    twin.model.load_state_dict(workload.model.state_dict())
    return Trainee(twin.model, twin.step, workload.args, make_optimizer(optimizer, twin.model, lr))


def train_steps(trainee: Trainee, num_steps: int, on_step: Callable[[float], Any]) -> TrainingRun:
    """Train alone."""
    losses, times = [], []
    for _ in range(num_steps):
        loss, seconds = trainee.train_once()
        losses.append(float(loss))
        times.append(seconds)
        on_step(losses[-1])
    return TrainingRun(tuple(losses), tuple(times))


def random_state(where: torch.device) -> Tensor:
    """Of the CPU's generator, and of the device's where that is another."""
    own = [] if where == CPU else [torch.get_device_module(where).get_rng_state(where).cpu()]
    return torch.cat([torch.get_rng_state(), *own])


def train_beside(trainee: Trainee, plain: Trainee, num_steps: int, on_step: Callable[[float], Any]) -> TrainingRun:
    """Train both, one step of each in turn, and compare everything after every step."""
    losses: list[float] = []
    times: list[tuple[float, float]] = []
    compared: list[str | None] = []
    for number in range(1, num_steps + 1):
        with own_generators(trainee.where):
            loss, seconds = trainee.train_once()
            after = random_state(trainee.where)
        plain_loss, plain_seconds = plain.train_once()
        pairs = {"loss": (loss, plain_loss), "random state": (after, random_state(trainee.where))}
        compared += _compare(number, pairs, trainee.state(), plain.state())
        losses.append(float(loss))
        times.append((seconds, plain_seconds))
        on_step(losses[-1])
    differences = tuple(found for found in compared if found is not None)
    ours, theirs = zip(*times, strict=True)
    return TrainingRun(tuple(losses), ours, theirs, len(compared), differences)


def _compare(
    number: int, pairs: Mapping[str, tuple[Tensor, Tensor]], ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]
) -> Iterator[str | None]:
    """One entry per tensor: None when equal, else what differs and in which training step."""
    for name, (mine, plain) in pairs.items():
        yield None if _same(mine, plain) else f"step {number}: {name}"
    for name in sorted(ours.keys() | theirs.keys()):
        same = name in ours and name in theirs and _same(ours[name], theirs[name])
        yield None if same else f"step {number}: {name}"


def _same(ours: Tensor, theirs: Tensor) -> bool:
    """Bit for bit, so that a NaN equals the same NaN; `torch.equal` would call a diverged run different from itself."""
    return ours.dtype == theirs.dtype and ours.shape == theirs.shape and torch.equal(_bits(ours), _bits(theirs))


def _bits(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().view(-1).view(torch.uint8)
