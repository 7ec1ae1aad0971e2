"""What a model's account holds beside the step that is planned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from vdnn.ir import Graph
from vdnn.units import NBYTES_PER_ELEMENT, KiB, MiB

KERNELS_NBYTES, OBJECTS_NBYTES_PER_NODE = 8 * MiB, 25 * KiB
"""What the interpreter holds for a traced step beyond the 24 MiB that a process may always rise by: kernels that
libraries generate and code that is read in, and per node its guards, fake tensors, a line of program, and the holes
between them. Over six networks of 232 to 4,615 nodes the process rose by 44 to 146 MiB above the tensors of its steps
(`benchmarks/process_peak.py`)."""

LOSS_TIMES = 3
"""How many tensors of the size of what it reads a loss outside of the model has at once, beside the gradient that it
hands over: cross_entropy three, mse_loss and binary_cross_entropy_with_logits two, a mean one. Losses that are written
op by op may have more."""

LOSS_ELEMENT_NBYTES = 4
"""Of an element in a loss at least: outputs of 16 bits are made float32 first."""

ACCELERATOR_BLOCK_NBYTES = 512
"""Allocators of accelerators hand out multiples of it (`kMinBlockSize` in c10/cuda/CUDACachingAllocator.h)."""

FEW_NODES = 250
"""Steps of fewer nodes stay within what a process may always rise by."""

FURTHER_NBYTES_PER_NODE = 20 * KiB
"""The same for every further shape of a model, whose code and kernels are there: ResNet-34 in 814 nodes held 13 to
16 MiB more with each."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """`num_in_flight` steps wait for their backward at once, the planned one among them; `outside_nbytes` are held by
    what runs outside of the model between forward and backward: a loss, say. `expected_nbytes` is what may be held
    there as long as nobody has seen it: a plan leaves room for it where the budget has that, else as much as there is.
    `interpreter_nbytes` are no tensors, and in the same memory: the objects that the interpreter holds for the step, or
    on an accelerator, where there are none, what its allocator rounds up. `in_arena`: the step runs in an arena of
    whole blocks on an accelerator, which is reserved all the time, as is what lies outside of it."""

    num_in_flight: int = 1
    outside_nbytes: int = 0
    interpreter_nbytes: int = 0
    expected_nbytes: int = 0
    in_arena: bool = False

    def __post_init__(self) -> None:
        nbytes = (self.outside_nbytes, self.interpreter_nbytes, self.expected_nbytes)
        if self.num_in_flight < 1 or min(nbytes) < 0:
            raise ValueError(f"at least one step is in flight and nothing takes negative bytes: {self}")

    @property
    def of_tensors(self) -> Surroundings:
        """The same without the interpreter."""
        return replace(self, interpreter_nbytes=0)

    @property
    def as_expected(self) -> Surroundings:
        """What is expected outside counts as if it had been seen."""
        return replace(self, outside_nbytes=max(self.outside_nbytes, self.expected_nbytes), expected_nbytes=0)

    @property
    def as_seen(self) -> Surroundings:
        """Nothing is expected."""
        return replace(self, expected_nbytes=0)

    def joined(self, other: Surroundings) -> Surroundings:
        """What holds both."""
        return Surroundings(
            max(self.num_in_flight, other.num_in_flight),
            max(self.outside_nbytes, other.outside_nbytes),
            max(self.interpreter_nbytes, other.interpreter_nbytes),
            max(self.expected_nbytes, other.expected_nbytes),
            self.in_arena or other.in_arena,
        )


ALONE = Surroundings()


def interpreter_nbytes(num_nodes: int, num_others: int = 0) -> int:
    """For a traced step of so many nodes, where the model's other shapes have `num_others` together."""
    own_nbytes = KERNELS_NBYTES + OBJECTS_NBYTES_PER_NODE * num_nodes if num_nodes >= FEW_NODES else 0
    return own_nbytes + FURTHER_NBYTES_PER_NODE * max(num_others - FEW_NODES, 0)


def expected_outside_nbytes(graph: Graph) -> int:
    """What a loss outside of the model may hold. A model that returns a single number has its loss inside; of its other
    outputs autograd makes a gradient of zeros."""
    outputs = [graph.values[value] for value in graph.tangents]
    return nbytes_of_a_loss([(prod(value.shape), NBYTES_PER_ELEMENT[value.dtype]) for value in outputs])


def nbytes_of_a_loss(sizes: Sequence[tuple[int, int]]) -> int:
    """Of outputs of so many elements, each of so many bytes."""
    if any(count == 1 for count, _ in sizes):
        return sum(count * nbytes for count, nbytes in sizes)
    return LOSS_TIMES * sum(count * max(nbytes, LOSS_ELEMENT_NBYTES) for count, nbytes in sizes)


def rounding_nbytes(graph: Graph) -> int:
    """The most that an accelerator's allocator takes for the storages of a step beside their bytes. What may be held
    encoded has a size that nobody knows yet."""
    stashed = set(graph.stashed)
    sizes = [(position, storage.nbytes) for position, storage in enumerate(graph.storages)]
    return sum(
        ACCELERATOR_BLOCK_NBYTES - 1 if at in stashed else -nbytes % ACCELERATOR_BLOCK_NBYTES for at, nbytes in sizes
    )
