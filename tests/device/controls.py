"""What a test turns on the device; `reset` puts all of it back. Nothing here may be called before `device.load()`."""

from __future__ import annotations

import torch

DEFAULT_SMALL, DEFAULT_LARGE = 2 << 20, 20 << 20


def set_limit(nbytes: int | None, device: int | None = None) -> None:
    """Reserved bytes of a device, the current one, past which an allocation raises torch.OutOfMemoryError; None is
    4 GiB."""
    index = torch.accelerator.current_device_index() if device is None else device
    torch.ops.vdev.set_limit(index, -1 if nbytes is None else nbytes)


def set_segments(small_nbytes: int = DEFAULT_SMALL, large_nbytes: int = DEFAULT_LARGE) -> None:
    """What the allocator reserves at once, for blocks up to 1 MiB and for larger ones, as CUDA's does. 0: each block is
    a segment of its own, so that reserved bytes are those of blocks."""
    torch.ops.vdev.set_segments(small_nbytes, large_nbytes)


def set_copy_rate(bytes_per_s: float) -> None:
    """The link between host and device, both ways; 0 is as fast as memory."""
    torch.ops.vdev.set_copy_rate(bytes_per_s)


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


def reset() -> None:
    torch.ops.vdev.synchronize_all()
    set_delay(0)
    set_copy_rate(0)
    set_poison(False)
    set_blocking(False)
    set_segments()
    for device in range(torch.accelerator.device_count()):
        set_limit(None, device)
        torch.accelerator.reset_peak_memory_stats(device)
    torch.accelerator.empty_cache()
