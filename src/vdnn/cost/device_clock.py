"""Seconds on an accelerator, by its own events: what was given to a stream, without anybody waiting in between.

Enters: a function that gives work to a stream. Leaves: how long the stream was busy with it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

Work = Callable[[], object]


def new_event() -> torch.Event:
    """One that knows when it happened."""
    return torch.Event(torch.accelerator.current_accelerator(), enable_timing=True)


def between_s(begin: torch.Event, end: torch.Event) -> float:
    """Of two events that have happened."""
    return max(begin.elapsed_time(end) * 1e-3, 1e-9)


def device_seconds(work: Work, stream: torch.Stream | None = None) -> float:
    """What `work` takes on the stream to which it is given: the current one, unless another is named."""
    stream = torch.accelerator.current_stream() if stream is None else stream
    begin, end = new_event(), new_event()
    begin.record(stream)
    work()
    end.record(stream)
    end.synchronize()
    return between_s(begin, end)
