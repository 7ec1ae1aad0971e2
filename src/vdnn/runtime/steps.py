"""The step that is running in this thread, and the calls that generated code makes to it.

Generated forward and backward functions take nothing but tensors. What they tell the runtime (`mark`: step t begins)
and ask of it (`open_handle`: a handle for this step) goes to the innermost step that this thread has entered.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import torch

from vdnn.runtime import handles


class Step(Protocol):
    """What generated code may call."""

    def mark(self, step: int) -> None: ...


class _Running(threading.local):
    def __init__(self) -> None:
        self.steps: list[Step] = []


_running = _Running()


@contextmanager
def running(step: Step) -> Iterator[None]:
    _running.steps.append(step)
    try:
        yield
    finally:
        _running.steps.pop()


def mark(step: int) -> None:
    _running.steps[-1].mark(step)


def open_handle() -> torch.Tensor:
    return handles.issue(_running.steps[-1])
