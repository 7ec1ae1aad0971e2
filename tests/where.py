"""Where the tests of this run make their models and batches: the CPU, or what `--device` names (`conftest.py`)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

import torch

from vdnn.cost.op_memory import allocation_changes


def here() -> torch.device:
    return torch.get_default_device()


def seeded(seed: int) -> torch.Generator:
    """A generator of the device: a kernel there takes no other's. What has no data takes any."""
    return torch.Generator("cpu" if here().type == "meta" else here()).manual_seed(seed)


def rng_state() -> torch.Tensor:
    """Of the default generators that a step may draw from, the CPU's and the device's."""
    states = [torch.get_rng_state()]
    if here().type != "cpu":
        states.append(torch.get_device_module(here()).get_rng_state())
    return torch.cat([state.cpu() for state in states])


def risen_nbytes(run: Callable[[], object]) -> int:
    """The most bytes that a run has at once beyond what was there before it, as torch's own allocator counts them."""
    if here().type == "cpu":
        return max(accumulate(allocation_changes(run), initial=0))
    torch.accelerator.synchronize()
    before_nbytes = torch.accelerator.memory_allocated()
    torch.accelerator.reset_peak_memory_stats()
    run()
    torch.accelerator.synchronize()
    return torch.accelerator.max_memory_allocated() - before_nbytes
