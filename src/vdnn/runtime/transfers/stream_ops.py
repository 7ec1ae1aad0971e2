"""The few stream operations that transfers on an accelerator are made of.

`AcceleratorOps` does them with torch, by generic names only, so that any `torch.accelerator` works. `checking.py` does
the same on vector clocks. `streams.py` is written against the protocol and cannot tell which it has.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch

from vdnn.torch_private import without_torch_dispatch

Stream = Any
StreamEvent = Any


class StreamOps(Protocol):
    """A stream runs its operations in order; two streams are ordered only by events."""

    def current_stream(self) -> Stream:
        """The stream on which the model computes."""
        ...

    def new_stream(self) -> Stream: ...

    def record(self, stream: Stream) -> StreamEvent:
        """An event that happens when everything given to `stream` so far is done."""
        ...

    def wait(self, stream: Stream, event: StreamEvent) -> None:
        """Let everything given to `stream` from now on happen after `event`."""
        ...

    def copy(self, stream: Stream, target: torch.Tensor, source: torch.Tensor) -> None: ...

    def synchronize(self, event: StreamEvent) -> None:
        """Make the calling thread wait for `event`."""
        ...


class AcceleratorOps:
    """Stream operations of one accelerator, whichever the calling thread has as its current one."""

    def __init__(self, where: torch.device) -> None:
        self._where = where

    def current_stream(self) -> torch.Stream:
        return torch.accelerator.current_stream(self._where)

    def new_stream(self) -> torch.Stream:
        return torch.Stream(self._where)

    def record(self, stream: torch.Stream) -> torch.Event:
        return stream.record_event()

    def wait(self, stream: torch.Stream, event: torch.Event) -> None:
        stream.wait_event(event)

    def copy(self, stream: torch.Stream, target: torch.Tensor, source: torch.Tensor) -> None:
        with without_torch_dispatch(), stream:
            target.copy_(source, non_blocking=True)

    def synchronize(self, event: torch.Event) -> None:
        event.synchronize()
