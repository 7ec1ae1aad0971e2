"""The vocabulary: Op, Value, Storage and Graph of one training step.

Enters: what `capture/lower.py` reads from PyTorch, or what a test or `papers/` writes by hand. Leaves: a `Graph` that
the cost model, the planner, the simulator and the report share. Nothing here imports torch.

The one idea: **a storage is what costs memory**. A value is a typed view of a storage; an op reads and writes values.
Views, in-place ops and outputs that alias inputs are several values of one storage, so whatever counts bytes counts
storages and can neither forget an alias nor count it twice. Moments are op positions: moment t runs `graph.ops[t]`,
forward first, then backward.

Names come from models and files, so anything may be in them. Here they become what may be shown (`printable.py`), once
and for everybody: reports, listings, errors and logs take them from here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any

from vdnn.printable import printable


class Phase(StrEnum):
    FORWARD = "forward"
    BACKWARD = "backward"


class Role(StrEnum):
    """What a storage is for. The order is the order of reports: what lives long comes first."""

    PARAMETER = "parameter"
    OPTIMIZER_STATE = "optimizer state"
    BUFFER = "buffer"
    INPUT = "input"
    OUTPUT = "output"
    FEATURE_MAP = "feature map"
    GRADIENT_MAP = "gradient map"
    GRADIENT = "gradient"
    WORKSPACE = "workspace"


PERSISTENT_ROLES = frozenset({Role.PARAMETER, Role.OPTIMIZER_STATE, Role.BUFFER, Role.INPUT})
"""Roles whose storages exist before the step and after it: no plan moves them."""


class Need(StrEnum):
    """What information a reader takes from a value, from the least to the most (Gist's insight, made general)."""

    NOTHING = "nothing"
    SHAPE = "shape"
    SIGN = "sign"
    BOOL = "bool"
    WINDOW_INDEX = "window index"
    ALL = "all values"


NO_USE = frozenset({Need.NOTHING, Need.SHAPE})
"""Reads that touch no byte: whoever asks for no more does not keep a storage alive."""

Detail = tuple[float | int, ...]
"""What exactly a partial need asks for: the test behind a bit, the geometry of a window."""


@dataclass(frozen=True, slots=True)
class Information:
    """What readers take of a storage between them. Partial needs are not ordered in truth (a sign is no window index,
    and being above 0 is not being above 6): two that differ need all values together.
    """

    need: Need = Need.NOTHING
    detail: Detail = ()

    @property
    def is_partial(self) -> bool:
        return self.need not in (Need.NOTHING, Need.SHAPE, Need.ALL)

    def joined(self, other: Information) -> Information:
        if self == other:
            return self
        if self.is_partial and other.is_partial:
            return Information(Need.ALL)
        return max(self, other, key=lambda information: _RANK[information.need])


_RANK = {need: rank for rank, need in enumerate(Need)}


class Trait(StrEnum):
    """What a rewrite has to know of an op before it may move, repeat or drop it."""

    VIEW = "view"  # its outputs share its input's storage and nothing is computed
    IN_PLACE = "in-place"  # it writes into a storage that exists already
    RANDOM = "random"  # repeating it draws other numbers unless the generator's state is replayed
    UPDATES = "updates"  # beside its results it updates inputs (running statistics): a replay leaves that out
    COLLECTIVE = "collective"  # other processes take part: repeating it alone hangs
    MUST_KEEP = (
        "must keep"  # an effect outside its outputs, or unknown to the trait table: never repeated, never dropped
    )


def _show(named: Any, *fields: str) -> None:
    """Escape what people would not see in the names of a new value."""
    for field in fields:
        name = getattr(named, field)
        if not name.isprintable():
            object.__setattr__(named, field, printable(name))


@dataclass(frozen=True, slots=True)
class Storage:
    """A block of memory. `values` are all values that live in it, in order of birth: its aliases.

    `alphabet` lists the only numbers its elements can be once it is complete: (0, 1) for a boolean mask, (0, 1/(1-p))
    for dropout's noise. Empty: any. The first is 0: others are told apart from it.
    """

    name: str
    nbytes: int
    role: Role
    dtype: str
    values: tuple[int, ...]
    alphabet: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.nbytes < 0:
            raise ValueError(f"storage {self.name!r} has negative size: {self.nbytes}")
        if self.alphabet and self.alphabet[0] != 0:
            raise ValueError(f"the elements of storage {self.name!r} are none of them 0: {self.alphabet}")
        _show(self, "name")


@dataclass(frozen=True, slots=True)
class Value:
    """A typed, shaped look at a storage."""

    name: str
    storage: int
    shape: tuple[int, ...]
    dtype: str

    def __post_init__(self) -> None:
        _show(self, "name")


@dataclass(frozen=True, slots=True)
class Read:
    """One op reads one value, and takes `need` of it, to be exact `detail`.

    `reads_encoded`: the op has a form that takes the value encoded for just this, so that nobody has to decode it.
    """

    value: int
    need: Need = Need.ALL
    detail: Detail = ()
    reads_encoded: bool = False

    @property
    def information(self) -> Information:
        return Information(self.need, self.detail)


@dataclass(frozen=True, slots=True)
class Op:
    """One call of the graph. `writes` holds the values it makes; a write into an existing storage is an in-place
    write."""

    name: str
    target: str
    phase: Phase
    module: str
    reads: tuple[Read, ...]
    writes: tuple[int, ...]
    flops: int = 0
    traits: frozenset[Trait] = frozenset()

    def __post_init__(self) -> None:
        _show(self, "name", "target", "module")

    def has(self, trait: Trait) -> bool:
        return trait in self.traits


@dataclass(frozen=True, slots=True)
class Lifetime:
    """Moments at which a storage must exist, half-open: begin <= moment < end."""

    begin: int
    end: int

    def __post_init__(self) -> None:
        if not self.begin < self.end:
            raise ValueError(f"lifetime is empty: begin={self.begin}, end={self.end}")

    def __contains__(self, moment: int) -> bool:
        return self.begin <= moment < self.end


@dataclass(frozen=True)
class Graph:
    """One training step: ops in execution order over values over storages, all addressed by position.

    `inputs` exist before moment 0. `tangents` arrive with the first backward op. `held` values are kept by the caller
    once they exist: the forward's outputs and the gradients. `tangents` are let go after their last use unless they are
    also in `held`.
    """

    name: str
    ops: tuple[Op, ...]
    values: tuple[Value, ...]
    storages: tuple[Storage, ...]
    inputs: tuple[int, ...]
    tangents: tuple[int, ...]
    held: tuple[int, ...]

    def __post_init__(self) -> None:
        _show(self, "name")
        problems = list(_malformed(self))
        if problems:
            raise ValueError(f"graph {self.name!r} is malformed:\n" + "\n".join(f"    {p}" for p in problems[:20]))

    def __len__(self) -> int:
        return len(self.ops)

    @cached_property
    def num_forward(self) -> int:
        """The moment at which backward begins; equals len(ops) when there is none."""
        return next((t for t, op in enumerate(self.ops) if op.phase is Phase.BACKWARD), len(self.ops))

    @cached_property
    def lifetimes(self) -> tuple[Lifetime | None, ...]:
        """Of each storage when everything is kept: from birth to last touch, or to the end. None: never touched."""
        begin: list[int | None] = [None] * len(self.storages)
        end = [0] * len(self.storages)
        horizon = max(len(self.ops), 1)
        for value in self.inputs:
            begin[self.values[value].storage] = 0
            end[self.values[value].storage] = horizon
        for value in self.tangents:
            storage = self.values[value].storage
            if begin[storage] is None:
                begin[storage] = min(self.num_forward, horizon - 1)
                end[storage] = max(end[storage], begin[storage] + 1)  # type: ignore[operator]
        for moment, storage in self.touches():
            if begin[storage] is None:
                begin[storage] = moment
            end[storage] = max(end[storage], moment + 1)
        for value in self.held:
            end[self.values[value].storage] = horizon
        return tuple(None if b is None else Lifetime(b, e) for b, e in zip(begin, end, strict=True))

    def touches(self) -> Iterator[tuple[int, int]]:
        """(moment, storage) for every read and write, in moment order."""
        for moment, op in enumerate(self.ops):
            for read in op.reads:
                yield moment, self.values[read.value].storage
            for value in op.writes:
                yield moment, self.values[value].storage

    def replayed(self, moment: int) -> tuple[tuple[Read, ...], tuple[int, ...]]:
        """What an op reads and writes when it runs again: everything, except that statistics are not updated twice."""
        op = self.ops[moment]
        if not op.has(Trait.UPDATES):
            return op.reads, op.writes
        updated = {
            self.values[value].storage
            for value in op.writes
            if self.storages[self.values[value].storage].role in PERSISTENT_ROLES
        }
        return (
            tuple(read for read in op.reads if self.values[read.value].storage not in updated),
            tuple(value for value in op.writes if self.values[value].storage not in updated),
        )

    @cached_property
    def stashed(self) -> tuple[int, ...]:
        """Storages made in forward and read in backward: what a plan decides about, unless the caller holds it
        (`plan/model/stashes.py`). Persistent roles are not among them."""
        made: set[int] = set()
        stashed: dict[int, None] = {}
        for moment, op in enumerate(self.ops):
            if moment < self.num_forward:
                made.update(self.values[v].storage for v in op.writes)
            else:
                for read in op.reads:
                    storage = self.values[read.value].storage
                    if storage in made and self.storages[storage].role not in PERSISTENT_ROLES:
                        stashed[storage] = None
        return tuple(stashed)

    @cached_property
    def backward_needs(self) -> dict[int, Information]:
        """For every stashed storage what its backward readers take of it between them."""
        needs: dict[int, Information] = {}
        stashed = set(self.stashed)
        for op in self.ops[self.num_forward :]:
            for read in op.reads:
                storage = self.values[read.value].storage
                if storage in stashed:
                    needs[storage] = needs.get(storage, Information()).joined(read.information)
        return needs


def _malformed(graph: Graph) -> Iterator[str]:
    """Everything that makes positions in the graph meaningless."""
    num_values, num_storages = len(graph.values), len(graph.storages)
    for value in graph.values:
        if not 0 <= value.storage < num_storages:
            yield f"value {value.name!r} lives in storage {value.storage} of {num_storages}"
            return
    for given in (*graph.inputs, *graph.tangents):
        if not 0 <= given < num_values:
            yield f"value {given} of {num_values} is given from outside"
    exists = set(graph.inputs) | set(graph.tangents)
    seen_backward = False
    for op in graph.ops:
        seen_backward = seen_backward or op.phase is Phase.BACKWARD
        if seen_backward and op.phase is Phase.FORWARD:
            yield f"forward op {op.name!r} stands after a backward op"
        for read in op.reads:
            if not 0 <= read.value < num_values:
                yield f"op {op.name!r} reads value {read.value} of {num_values}"
            elif read.value not in exists:
                yield f"op {op.name!r} reads {graph.values[read.value].name!r} before anything wrote it"
        for written in op.writes:
            if not 0 <= written < num_values:
                yield f"op {op.name!r} writes value {written} of {num_values}"
            elif written in exists:
                yield f"op {op.name!r} writes {graph.values[written].name!r} a second time"
        exists.update(op.writes)
    for held in graph.held:
        if held not in exists:
            yield f"held value {held} is never written"
    for position, storage in enumerate(graph.storages):
        for aliasing in storage.values:
            if not 0 <= aliasing < num_values or graph.values[aliasing].storage != position:
                yield f"storage {storage.name!r} lists value {aliasing}, which does not live in it"
