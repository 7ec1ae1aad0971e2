"""The memory that steps run in: one arena per model, kept between steps, with planned addresses.

`csrc/step_allocator.cpp` wraps PyTorch's CPU allocator, `library.py` builds and loads it, `allocator.py` calls it,
`step_memory.py` learns what an iteration asks for and plans where it lies.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from vdnn.hardware.where import CPU
from vdnn.plan.model.surroundings import Surroundings
from vdnn.runtime.process_memory import return_freed_memory_if_possible
from vdnn.runtime.step_memory.allocator import NO_SLOTS, StepAllocator
from vdnn.runtime.step_memory.device_memory import DeviceMemory
from vdnn.runtime.step_memory.library import begin_step_library, device_library, step_library
from vdnn.runtime.step_memory.step_memory import MemoryCounts, RunningHalf, StepMemory, UnplannedMemory

__all__ = [
    "DeviceMemory",
    "MappedMemory",
    "MemoryCounts",
    "RunningHalf",
    "StepMemory",
    "UnplannedMemory",
    "aside",
    "begin_step_library",
    "open_step_memory",
    "returned_memory",
    "surroundings_on",
]


def open_step_memory(where: torch.device = CPU, *, within_budget: bool = False) -> StepMemory | UnplannedMemory:
    """Memory for the steps of one model. Without the library, an accelerator's is that of its own allocator, and the
    CPU's is malloc's, which is told to return what is freed where a budget is to be kept. That holds for the rest of
    the process, and is said before anything large is allocated (Note: [The settings come first])."""
    if where != CPU:
        on_device = device_library(where.type)
        if on_device.functions is None:
            return UnplannedMemory(on_device.missing)
        return DeviceMemory(StepAllocator(on_device.functions, str(where)))
    library = step_library()
    if library.functions is not None:
        return StepMemory(StepAllocator(library.functions))
    return UnplannedMemory(library.missing, returns_freed=within_budget and return_freed_memory_if_possible())


def surroundings_on(where: torch.device) -> Surroundings:
    """What the memory of steps there means to an account."""
    has_arena = where != CPU and device_library(where.type).functions is not None
    return Surroundings(in_arena=has_arena)


class MappedMemory:
    """While entered, a large block that this thread takes is a mapping of its own, gone when it is freed: the process
    holds what is alive. For steps that nobody planned. Of what computes on an accelerator, and without the library,
    memory is others' affair, and nothing is seen outside of them."""

    def __init__(self, where: torch.device = CPU) -> None:
        library = step_library() if where == CPU else None
        functions = None if library is None else library.functions
        self._allocator = None if functions is None else StepAllocator(functions)
        self.is_between, self._between_peak_nbytes = False, 0

    def begin_step(self) -> None:
        """What was noted of the blocks before is of no use to anybody."""
        if self._allocator is not None:
            self._end_between()
            self._allocator.begin_iteration()

    def begin_between(self) -> None:
        """What this thread takes until it is entered again runs outside of a step: between a forward and its
        backward."""
        if self._allocator is not None:
            self.is_between = True
            self._allocator.begin_between(NO_SLOTS)

    def taken_between(self) -> int:
        """The most that was taken there at once, since it was asked the last time."""
        self._end_between()
        nbytes, self._between_peak_nbytes = self._between_peak_nbytes, 0
        return nbytes

    def _end_between(self) -> None:
        if self.is_between and self._allocator is not None:
            self.is_between = False
            self._allocator.end_between()
            self._between_peak_nbytes = self._allocator.counts().between_peak_nbytes

    def __enter__(self) -> None:
        if self._allocator is not None:
            self._end_between()
            self._allocator.begin_half(NO_SLOTS)

    def __exit__(self, *error: object) -> None:
        if self._allocator is not None:
            self._allocator.end_half([])


@contextmanager
def aside(where: torch.device) -> Iterator[None]:
    """What this thread takes inside is not the same in every step, and gone with it: temporaries of kernels that are
    made of torch's ops, whose shapes and copies follow the data. It takes holes of an accelerator's arena."""
    functions = None if where.type == CPU.type else device_library(where.type).functions
    if functions is None:
        yield
        return
    functions.vdnn_step_aside(1)
    try:
        yield
    finally:
        functions.vdnn_step_aside(-1)


@contextmanager
def returned_memory(where: torch.device = CPU) -> Iterator[None]:
    """Large blocks that this thread takes inside go back to the system soon after they are freed. For work beside
    steps, such as measuring ops: malloc would keep holes of their size for good. A block of the same size is taken
    again first, as in a step: an op that is timed should not be timed with page faults that its step does not have.
    Of what computes on an accelerator, memory is its allocator's affair."""
    library = step_library() if where == CPU else None
    if library is None or library.functions is None:
        yield
        return
    allocator = StepAllocator(library.functions)
    allocator.begin_repeated()
    try:
        yield
    finally:
        allocator.end_half([])
