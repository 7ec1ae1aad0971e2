"""Stream operations that move nothing and watch the order: a race detector for transfers.

Enters: what `streams.py` and a program do with streams, events and memory. Leaves: `violations`, in words. Each stream
is an actor with a vector clock: how far it is certain, at this point, that every actor has come.
Recording an event takes a snapshot of a stream's clock, waiting for it merges the snapshot. An access to memory is
ordered after an earlier one if the actor is certain of it. The two rules (Lamport 1978; the detector is that of
Djit, Pozniansky and Schuster 2003, kept slow and obvious):

    a read comes after the last writes of the same bytes;
    a write, and the end of a buffer's life, comes after the last reads and writes of the same bytes.

Memory is known by its real addresses, so a buffer that is freed and handed out again meets the accesses of its earlier
life. `CheckedCompute` reports what a real program on the CPU does as if it ran on the accelerator's compute stream.
"""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass, field
from typing import Any

import torch

from vdnn.torch_private import TorchDispatchMode, schema_of, storage_id, tree_leaves

VectorClock = dict[str, int]


@dataclass(eq=False)
class CheckedStream:
    """An actor. `clock[other]` is how many operations of `other` are certain to be done."""

    name: str
    clock: VectorClock = field(default_factory=dict)


@dataclass(frozen=True)
class Access:
    """One operation on the bytes [begin, end)."""

    begin: int
    end: int
    actor: str
    time: int
    is_write: bool
    words: str

    def is_certain_in(self, clock: VectorClock) -> bool:
        return clock.get(self.actor, 0) >= self.time


class CheckingOps:
    """`StreamOps` on vector clocks. `violations` lists every access that was not ordered after what it depends on."""

    def __init__(self) -> None:
        self.violations: list[str] = []
        self._hosts: dict[int, VectorClock] = {}  # thread -> what it has synchronized with
        self._compute = CheckedStream("compute")
        self._num_streams = 0
        self._accesses: list[Access] = []

    # What streams.py calls

    def current_stream(self) -> CheckedStream:
        return self._compute

    def new_stream(self) -> CheckedStream:
        self._num_streams += 1
        return CheckedStream(f"side stream {self._num_streams}")

    def record(self, stream: CheckedStream) -> VectorClock:
        return dict(stream.clock)

    def wait(self, stream: CheckedStream, event: VectorClock) -> None:
        _merge(stream.clock, event)

    def copy(self, stream: CheckedStream, target: torch.Tensor, source: torch.Tensor) -> None:
        assert target.numel() == source.numel(), f"copy of {source.numel()} bytes into {target.numel()}"
        self._access(stream, _range(source), f"copy on {stream.name} reads", is_write=False)
        self._access(stream, _range(target), f"copy on {stream.name} writes", is_write=True)

    def synchronize(self, event: VectorClock) -> None:
        _merge(self._hosts.setdefault(threading.get_ident(), {}), event)

    # What a program does on the compute stream

    def compute_reads(self, tensor: torch.Tensor) -> None:
        self._access(self._compute, _range(tensor), "compute reads", is_write=False)

    def compute_writes(self, tensor: torch.Tensor) -> None:
        self._access(self._compute, _range(tensor), "compute writes", is_write=True)

    def freed(self, begin: int, nbytes: int) -> None:
        """The allocator hands these bytes to what compute does next."""
        self._check(self._compute.clock, begin, begin + nbytes, "memory is freed", is_write=True)
        self._accesses = [access for access in self._accesses if not _overlaps(access, begin, begin + nbytes)]

    def _access(self, stream: CheckedStream, where: tuple[int, int], words: str, *, is_write: bool) -> None:
        """One operation given to a stream: it comes after what the stream and the host are certain of."""
        begin, end = where
        _merge(stream.clock, self._hosts.get(threading.get_ident(), {}))
        self._check(stream.clock, begin, end, words, is_write=is_write)
        self._forget_covered(stream, begin, end, is_write=is_write)
        time = stream.clock.get(stream.name, 0) + 1
        stream.clock[stream.name] = time
        self._accesses.append(Access(begin, end, stream.name, time, is_write, words))

    def _forget_covered(self, stream: CheckedStream, begin: int, end: int, *, is_write: bool) -> None:
        """What comes after a write comes after all that the write came after, so older accesses need no more checks;
        likewise an older read by the same stream."""
        self._accesses = [
            access
            for access in self._accesses
            if not (begin <= access.begin and access.end <= end)
            or not (is_write or (access.actor == stream.name and not access.is_write))
        ]

    def _check(self, clock: VectorClock, begin: int, end: int, words: str, *, is_write: bool) -> None:
        for earlier in self._accesses:
            if _overlaps(earlier, begin, end) and (is_write or earlier.is_write) and not earlier.is_certain_in(clock):
                self.violations.append(
                    f"{words} [{begin:#x}, {end:#x}) and nothing orders that after: {earlier.words}"
                    f" [{earlier.begin:#x}, {earlier.end:#x}), operation {earlier.time} of {earlier.actor}"
                )


class CheckedCompute(TorchDispatchMode):
    """Reports every op inside it as work of the compute stream: it reads its arguments and writes its results."""

    def __init__(self, ops: CheckingOps) -> None:
        super().__init__()
        self._ops = ops
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """A storage that was not seen before is written by the op that returns it; what the schema calls mutated is
        written too."""
        kwargs = kwargs or {}
        for tensor in _tensors((args, kwargs)):
            self._follow(tensor)
            self._ops.compute_reads(tensor)
        for argument, value in zip(schema_of(func).arguments, args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                self._report_writes(value)
        result = func(*args, **kwargs)
        self._report_writes([tensor for tensor in _tensors(result) if self._follow(tensor)])
        return result

    def _report_writes(self, tree: Any) -> None:
        for tensor in _tensors(tree):
            self._ops.compute_writes(tensor)

    def _follow(self, tensor: torch.Tensor) -> bool:
        """Whether this is the first sight of its storage, whose end will be reported."""
        storage = tensor.untyped_storage()
        if storage_id(storage) in self._known:
            return False
        self._known.add(storage_id(storage))
        weakref.finalize(
            storage, self._forget, storage_id(storage), storage.data_ptr(), storage.nbytes()
        ).atexit = False
        return True

    def _forget(self, key: int, begin: int, nbytes: int) -> None:
        self._known.discard(key)
        self._ops.freed(begin, nbytes)


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor) and leaf.numel()]


def _range(tensor: torch.Tensor) -> tuple[int, int]:
    """The bytes a tensor can touch: those of a contiguous one exactly, else all of its storage."""
    if tensor.is_contiguous():
        return tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.data_ptr() + storage.nbytes()


def _overlaps(access: Access, begin: int, end: int) -> bool:
    return access.begin < end and begin < access.end


def _merge(clock: VectorClock, other: VectorClock) -> None:
    for actor, time in other.items():
        clock[actor] = max(clock.get(actor, 0), time)
