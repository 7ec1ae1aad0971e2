"""The step that is running in this thread, and the calls that generated code makes to it.

Generated forward and backward functions take nothing but tensors. What they tell the runtime (`mark`: an instruction
begins) and ask of it (`open_handle`, and the calls that move or encode a storage) goes to the innermost step that this
thread has entered.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from vdnn.runtime.encodings import Encodings, Overflow
from vdnn.runtime.gradient_error import RememberedForward
from vdnn.runtime.journeys import Journeys
from vdnn.runtime.random_states import random_state, set_random_state
from vdnn.runtime.runtime import shared_runtime
from vdnn.torch_private import negated_view


class Step(Protocol):
    """What generated code may use."""

    journeys: Journeys
    encodings: Encodings
    overflow: Overflow
    remembered: RememberedForward | None
    repeatable: RememberedForward | None
    is_shown: bool
    """Whether a saved-tensor hook of the user's saw what forward saved."""
    edition: Any
    """The programs that its forward ran, and its backward will (`edition.py`)."""

    def mark(self, position: int) -> None: ...

    def saw(self, results: Sequence[Any]) -> None: ...

    def made(self, results: Sequence[torch.Tensor | None]) -> None: ...


class _Running(threading.local):
    def __init__(self) -> None:
        self.steps: list[Step] = []


_running = _Running()


@contextmanager
def running(step: Step, *, is_end: bool = False) -> Iterator[None]:
    """One half of the step; `is_end`: the last one. Raises if what it has computed from was not what it should be."""
    _running.steps.append(step)
    try:
        yield
    finally:
        _running.steps.pop()
    step.encodings.settle(step.overflow, is_end=is_end)


def mark(position: int) -> None:
    _running.steps[-1].mark(position)


def saw(result: Any) -> None:
    """What the op that was marked last has returned."""
    _running.steps[-1].saw(result if isinstance(result, (tuple, list)) else (result,))


def made(results: Sequence[torch.Tensor | None]) -> None:
    """What an op of ours returns that no tracker saw at work."""
    _running.steps[-1].made(results)


def open_handle() -> torch.Tensor:
    step = _running.steps[-1]
    return shared_runtime().handles.issue(step, step.edition.number)


def send(decision: int, tensor: torch.Tensor) -> None:
    _running.steps[-1].journeys.send(decision, tensor)


def leave(decision: int, *held: torch.Tensor) -> None:
    """`held` is a value of the storage: named here, it lives until here, as the plan counts it."""
    _running.steps[-1].journeys.leave(decision)


def fetch(decision: int) -> torch.Tensor:
    return _running.steps[-1].journeys.fetch(decision)


def arrive(decision: int) -> None:
    _running.steps[-1].journeys.arrive(decision)


def encode(decision: int, tensor: torch.Tensor) -> torch.Tensor:
    """The encoding of the storage that `tensor` lies in."""
    step = _running.steps[-1]
    return step.encodings.encode(decision, tensor, step.overflow)


def decode(decision: int, encoding: torch.Tensor) -> torch.Tensor:
    """The bytes of the storage again."""
    step = _running.steps[-1]
    return step.encodings.decode(decision, encoding, step.overflow)


def phantom(
    shape: tuple[int, ...], stride: tuple[int, ...], offset: int, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """A tensor of this layout without memory, for ops that look at nothing else."""
    return shared_runtime().phantoms.tensor(shape, stride, offset, dtype, device)


def replay_random(
    state: torch.Tensor, device: torch.device, op: Callable[..., Any], /, *args: Any, **kwargs: Any
) -> Any:
    """Run a random op again so that it draws the same numbers, and leave the generator as it was."""
    now = random_state(device)
    set_random_state(device, state)
    try:
        return op(*args, **kwargs)
    finally:
        set_random_state(device, now)


def look(
    shown: torch.Tensor,
    traced_nbytes: int,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    offset: int,
    dtype: torch.dtype,
    is_conj: bool,
    is_neg: bool,
) -> torch.Tensor:
    """The storage of `shown` as a tensor of the layout that it had in the trace, in which `shown` began at byte
    `traced_nbytes`. An input may begin elsewhere today."""
    moved_nbytes = shown.storage_offset() * shown.element_size() - traced_nbytes
    there = torch.empty(0, dtype=dtype, device=shown.device)
    there.set_(shown.untyped_storage(), offset + moved_nbytes // dtype.itemsize, shape, stride)
    there = there.conj() if is_conj else there
    return negated_view(there) if is_neg else there
