"""The peak of a training step in bytes, by one measure for whoever runs the step: eager ops, Inductor's kernels, vdnn.

Enters: a function that trains one step. Leaves: a `StepMemory`. The one idea: PyTorch's CPU allocator reports every
allocation and release, made by an op, by a library inside it, or by generated code (`vdnn/cost/op_memory.py`). The
highest running sum over one step, on top of what is there when it begins, is the step's peak, workspaces included.

What is there when a step begins: parameters, buffers and the sample; and what a contender keeps from step to step,
found as the growth of all live tensors since before it was built. vdnn's stand-ins for dropped maps are not among them:
they have an address and no memory (`vdnn/runtime/phantom.py`).

The staging buffers of vdnn's disk tier do not come from that allocator, and `staging_buffers` finds them. All models
share those, so they are a figure of their own: the pages with memory behind them.

Not in the figure, for anybody: what libraries keep for the life of the process, compiled code, Python's own objects.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from unittest.mock import patch

import torch
from torch import nn

from vdnn.cost.op_memory import allocation_changes
from vdnn.models.spec import Workload
from vdnn.runtime.runtime import shared_runtime
from vdnn.runtime.tiers.raw_memory import StagingPool

PLAIN_TENSORS = (torch.Tensor, nn.Parameter, nn.Buffer)  # exactly these: a fake tensor has no memory


@dataclass(frozen=True)
class StepMemory:
    """`unreleased_nbytes` is what the running sum stands at once the step's results are gone: 0 if every release was
    seen, as it should be."""

    peak_nbytes: int
    unreleased_nbytes: int


def step_memory(train: Callable[[], object], load: Workload, held_nbytes: int) -> StepMemory:
    """Of a step that begins without gradients; `held_nbytes` is what the contender keeps between steps."""

    def step() -> None:
        train()
        load.model.zero_grad(set_to_none=True)

    load.model.zero_grad(set_to_none=True)
    gc.collect()
    balance = list(accumulate(allocation_changes(step), initial=0))
    return StepMemory(state_nbytes(load) + held_nbytes + max(balance), balance[-1])


def state_nbytes(load: Workload) -> int:
    return storage_nbytes((*load.model.parameters(), *load.model.buffers(), *load.args))


def live_nbytes() -> int:
    """All real tensors that Python knows, each storage once."""
    gc.collect()
    tensors = (thing for thing in gc.get_objects() if type(thing) in PLAIN_TENSORS)
    return storage_nbytes(tensors) - shared_runtime().phantoms.mapped_nbytes


def storage_nbytes(tensors: Iterator[torch.Tensor] | tuple[torch.Tensor, ...]) -> int:
    storages = (tensor.untyped_storage() for tensor in tensors if tensor.device.type == "cpu")
    return sum({storage._cdata: storage.nbytes() for storage in storages}.values())


class Mappings:
    """Staging buffers of the disk tier made so far, by any contender: they share them."""

    def __init__(self) -> None:
        self.staging: list[mmap.mmap] = []

    def resident_staging_nbytes(self) -> int:
        return sum(map(resident_nbytes, self.staging))


@contextmanager
def staging_buffers() -> Iterator[Mappings]:
    """Within it, every buffer that is made is known."""
    mappings, new_buffer = Mappings(), StagingPool._new_buffer

    def known_buffer(pool: StagingPool) -> mmap.mmap:
        mappings.staging.append(new_buffer(pool))
        return mappings.staging[-1]

    with patch.object(StagingPool, "_new_buffer", known_buffer):
        yield mappings


def resident_nbytes(mapped: mmap.mmap) -> int:
    """The pages of a mapping that have memory behind them (mincore(2))."""
    address = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
    pages = (ctypes.c_ubyte * -(-len(mapped) // mmap.PAGESIZE))()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(len(mapped)), pages) != 0:
        raise OSError(ctypes.get_errno(), "mincore failed on a staging buffer")
    return mmap.PAGESIZE * sum(page & 1 for page in pages)
