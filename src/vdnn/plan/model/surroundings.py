"""What a model's account holds beside the step that is planned."""

from __future__ import annotations

from dataclasses import dataclass, replace

from vdnn.ir import Graph
from vdnn.units import KiB, MiB

KERNELS_NBYTES, OBJECTS_NBYTES_PER_NODE = 8 * MiB, 25 * KiB
"""What the interpreter holds for a traced step beyond the 24 MiB that a process may always rise by: kernels that
libraries generate and code that is read in, and per node its guards, fake tensors, a line of program, and the holes
between them. Over six networks of 232 to 4,615 nodes the process rose by 44 to 146 MiB above the tensors of its steps
(`benchmarks/process_peak.py`)."""

ACCELERATOR_BLOCK_NBYTES = 512
"""Allocators of accelerators hand out multiples of it (`kMinBlockSize` in c10/cuda/CUDACachingAllocator.h)."""

FEW_NODES = 250
"""Steps of fewer nodes stay within what a process may always rise by."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """`num_in_flight` steps wait for their backward at once, the planned one among them; `outside_nbytes` are held by
    what runs outside of the model between forward and backward: a loss, say. `interpreter_nbytes` are no tensors, and
    in the same memory: the objects that the interpreter holds for the step, or on an accelerator, where there are none,
    what its allocator rounds up."""

    num_in_flight: int = 1
    outside_nbytes: int = 0
    interpreter_nbytes: int = 0

    def __post_init__(self) -> None:
        if self.num_in_flight < 1 or self.outside_nbytes < 0 or self.interpreter_nbytes < 0:
            raise ValueError(f"at least one step is in flight and nothing takes negative bytes: {self}")

    @property
    def of_tensors(self) -> Surroundings:
        """The same without the interpreter."""
        return replace(self, interpreter_nbytes=0)

    def joined(self, other: Surroundings) -> Surroundings:
        """What holds both."""
        return Surroundings(
            max(self.num_in_flight, other.num_in_flight),
            max(self.outside_nbytes, other.outside_nbytes),
            max(self.interpreter_nbytes, other.interpreter_nbytes),
        )


ALONE = Surroundings()


def interpreter_nbytes(num_nodes: int) -> int:
    """For a traced step of so many nodes."""
    return KERNELS_NBYTES + OBJECTS_NBYTES_PER_NODE * num_nodes if num_nodes >= FEW_NODES else 0


def rounding_nbytes(graph: Graph) -> int:
    """The most that an accelerator's allocator takes for the storages of a step beside their bytes. What may be held
    encoded has a size that nobody knows yet."""
    stashed = set(graph.stashed)
    sizes = [(position, storage.nbytes) for position, storage in enumerate(graph.storages)]
    return sum(
        ACCELERATOR_BLOCK_NBYTES - 1 if at in stashed else -nbytes % ACCELERATOR_BLOCK_NBYTES for at, nbytes in sizes
    )
