"""`torch.vdev`: what torch asks of a device's module by name, where `torch.accelerator` does not answer already."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager

import torch
from torch import Generator, Tensor

Device = torch.device | int | str | None
Stream = torch.Stream
Event = torch.Event

_initialized = True  # torch.utils.checkpoint keeps the random state of no other device
NUM_DEVICES = 2  # kNumDevices in csrc/vdev.h


def index_of(device: Device) -> int:
    if isinstance(device, int):
        return device
    index = torch.device(device).index if device is not None else None
    return current_device() if index is None else index


def is_available() -> bool:
    return True


def is_initialized() -> bool:
    return True


def init() -> None:
    pass


_lazy_init = init


def device_count() -> int:
    return NUM_DEVICES  # torch.accelerator asks here


def current_device() -> int:
    return torch.accelerator.current_device_index()


def set_device(device: Device) -> None:
    torch.accelerator.set_device_index(index_of(device))


def device(device: Device) -> AbstractContextManager[None]:
    return torch.accelerator.device_index(index_of(device))


def synchronize(device: Device = None) -> None:
    torch.accelerator.synchronize(index_of(device))


def current_stream(device: Device = None) -> torch.Stream:
    return torch.accelerator.current_stream(index_of(device))


def set_stream(stream: torch.Stream) -> None:
    torch.accelerator.set_stream(stream)


def stream(stream: torch.Stream) -> torch.Stream:
    """A stream is its own context."""
    return stream


def empty_cache() -> None:
    torch.accelerator.empty_cache()


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.bfloat16, torch.float16]


def _is_in_bad_fork() -> bool:
    return False


def default_generator(device: Device = None) -> Generator:
    return torch.ops.vdev.default_generator(index_of(device))


def get_rng_state(device: Device = None) -> Tensor:
    return default_generator(device).get_state()


def set_rng_state(new_state: Tensor, device: Device = None) -> None:
    default_generator(device).set_state(new_state)


def get_rng_state_all() -> list[Tensor]:
    return [get_rng_state(index) for index in range(device_count())]


def set_rng_state_all(new_states: Iterable[Tensor]) -> None:
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


def manual_seed(seed: int) -> None:
    default_generator().manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    for index in range(device_count()):
        default_generator(index).manual_seed(int(seed))


def initial_seed() -> int:
    return default_generator().initial_seed()
