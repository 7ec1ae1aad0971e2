"""The memory that steps run in: one arena per model, kept between steps, with planned addresses.

`csrc/step_allocator.cpp` wraps PyTorch's CPU allocator, `library.py` builds and loads it, `allocator.py` calls it,
`step_memory.py` learns what an iteration asks for and plans where it lies.
"""

from vdnn.runtime.step_memory.allocator import StepAllocator
from vdnn.runtime.step_memory.library import step_library
from vdnn.runtime.step_memory.step_memory import MemoryCounts, StepMemory, UnplannedMemory

__all__ = ["MemoryCounts", "StepMemory", "UnplannedMemory", "open_step_memory"]


def open_step_memory() -> StepMemory | UnplannedMemory:
    """Memory for the steps of one model; without the library, malloc's."""
    library = step_library()
    return (
        UnplannedMemory(library.missing) if library.functions is None else StepMemory(StepAllocator(library.functions))
    )
