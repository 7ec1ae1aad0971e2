"""Where a device's random generator stands, read and put back. The runtime's own: no tracker counts these bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from vdnn.torch_private import without_torch_dispatch


def random_state(device: torch.device) -> torch.Tensor:
    """What the next random op on this device will start from."""
    with without_torch_dispatch():
        if device.type == "cpu":
            return torch.get_rng_state()
        return torch.get_device_module(device).get_rng_state(device)


def set_random_state(device: torch.device, state: torch.Tensor) -> None:
    with without_torch_dispatch():
        if device.type == "cpu":
            torch.set_rng_state(state)
        else:
            torch.get_device_module(device).set_rng_state(state, device)


def random_states(used: Iterable[Any]) -> list[tuple[torch.device, torch.Tensor]]:
    """Of the CPU and of the devices where the tensors among these are."""
    places = (one.device for one in used if isinstance(one, torch.Tensor))
    return [(device, random_state(device)) for device in dict.fromkeys([torch.device("cpu"), *places])]


def set_random_states(states: Sequence[tuple[torch.device, torch.Tensor]]) -> None:
    for device, state in states:
        set_random_state(device, state)
