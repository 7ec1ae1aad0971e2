"""What a test turns on the device; `reset` puts all of it back. Nothing here may be called before `device.load()`."""

from __future__ import annotations

from typing import NamedTuple

import torch

SPAN_KINDS = ("compute", "to host", "to device")  # Span in csrc/vdev.h
DEFAULT_SMALL, DEFAULT_LARGE = 2 << 20, 20 << 20


def set_limit(nbytes: int | None, device: int | None = None) -> None:
    """Reserved bytes of a device, the current one, past which an allocation raises torch.OutOfMemoryError; None is
    4 GiB."""
    index = torch.accelerator.current_device_index() if device is None else device
    torch.ops.vdev.set_limit(index, -1 if nbytes is None else nbytes)


def set_others(nbytes: int, device: int = 0) -> None:
    """What another process has of the device: it is not free, and counts against the limit."""
    torch.ops.vdev.set_others(device, nbytes)


def set_segments(small_nbytes: int = DEFAULT_SMALL, large_nbytes: int = DEFAULT_LARGE) -> None:
    """What the allocator reserves at once, for blocks up to 1 MiB and for larger ones, as CUDA's does. 0: each block is
    a segment of its own, so that reserved bytes are those of blocks."""
    torch.ops.vdev.set_segments(small_nbytes, large_nbytes)


def set_copy_rate(bytes_per_s: float) -> None:
    """The link between host and device, both ways; 0 is as fast as memory."""
    torch.ops.vdev.set_copy_rate(bytes_per_s)


def set_most_pinned(nbytes: int | None) -> None:
    """Page-locked bytes past which the system refuses more; None: it never does."""
    torch.ops.vdev.set_most_pinned(-1 if nbytes is None else nbytes)


def pinned_nbytes() -> tuple[int, int]:
    """Page-locked memory now, and at most since `reset`: what is in use and what torch keeps for later."""
    now, peak = torch.ops.vdev.pinned_nbytes()
    return now, peak


def set_lost(is_lost: bool, device: int = 0) -> None:
    """Every call to the device fails, as after it was reset; what was queued before is done."""
    torch.ops.vdev.set_lost(device, is_lost)


def set_delay(microseconds: int) -> None:
    """Before every op that a stream runs."""
    torch.ops.vdev.set_delay(microseconds)


def set_poison(is_poisoned: bool) -> None:
    """Freed memory is filled with 0xFF bytes, in the order of its stream: NaN in every floating-point type."""
    torch.ops.vdev.set_poison(is_poisoned)


def set_blocking(is_blocking: bool) -> None:
    """Every op has ended when its call returns: statistics of memory are the same in every run."""
    torch.ops.vdev.set_blocking(is_blocking)


def sleep(seconds: float) -> None:
    """Keeps the current stream busy; the caller goes on."""
    torch.ops.vdev.sleep(seconds)


def begin_virtual_time(*, is_on: bool = True) -> None:
    """From now on events tell the clocks of streams, which begin at 0: work takes what `compute_takes` says and copies
    their bytes over `set_copy_rate`. Note: [Virtual time] in csrc/streams.cpp"""
    torch.ops.vdev.begin_virtual_time(is_on)


def compute_takes(seconds: float, label: int = 0) -> None:
    """The current stream is busy for so long, in virtual time."""
    torch.ops.vdev.compute_takes(seconds, label)


class Span(NamedTuple):
    """What a stream did in virtual time; `label` is that of `compute_takes`, or the bytes of a copy."""

    stream: int
    kind: str
    label: int
    begin_s: float
    end_s: float


def virtual_spans() -> list[Span]:
    """Since virtual time began, each stream's in its order."""
    torch.ops.vdev.synchronize_all()
    rows = torch.ops.vdev.virtual_spans().tolist()
    return [Span(int(row[0]), SPAN_KINDS[int(row[1])], int(row[2]), row[3], row[4]) for row in rows]


def reset() -> None:
    for device in range(torch.accelerator.device_count()):
        set_lost(False, device)
    torch.ops.vdev.synchronize_all()
    set_delay(0)
    set_copy_rate(0)
    set_poison(False)
    set_blocking(False)
    set_segments()
    set_most_pinned(None)
    begin_virtual_time(is_on=False)
    for device in range(torch.accelerator.device_count()):
        set_limit(None, device)
        set_others(0, device)
        torch.accelerator.reset_peak_memory_stats(device)
    torch.accelerator.empty_cache()
    torch.accelerator.empty_host_cache()
    torch.ops.vdev.reset_peak_pinned()
