"""The order of streams, checked without an accelerator: `StreamTransfers` runs on operations that move nothing.

Device memory is played by small tensors: what a program on the compute stream does with them, and when an allocator
takes them back, is told to the checker.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from random_examples import examples
from vdnn.errors import TierFailed
from vdnn.runtime.tiers.disk import DiskStore
from vdnn.runtime.tiers.host import HostStore
from vdnn.runtime.transfers.checking import CheckedCompute, CheckingOps
from vdnn.runtime.transfers.streams import StreamTicket, StreamTransfers

NBYTES = 64
pytestmark = pytest.mark.timeout(60)


class Leaky(CheckingOps):
    """Leaves out one ordering call: the k-th of the kind named."""

    def __init__(self, kind: str, skipped: int) -> None:
        super().__init__()
        self.kind = kind
        self.skipped = skipped
        self.num_calls = 0

    def _is_skipped(self, kind: str) -> bool:
        self.num_calls += kind == self.kind
        return kind == self.kind and self.num_calls - 1 == self.skipped

    def wait(self, stream: Any, event: Any) -> None:
        if not self._is_skipped("wait"):
            super().wait(stream, event)


def buffer() -> torch.Tensor:
    return torch.empty(NBYTES, dtype=torch.uint8)


def free(ops: CheckingOps, tensor: torch.Tensor) -> None:
    """The allocator takes the memory back."""
    ops.freed(tensor.data_ptr(), tensor.numel())


def away_and_back(ops: CheckingOps) -> None:
    """The life of a feature map. Its old memory is freed, and the memory it returns to was in use just before."""
    transfers = StreamTransfers(ops, HostStore(pin=False))
    source, target = buffer(), buffer()
    ops.compute_writes(source)
    ticket = transfers.send(source, "host")  # wait 0: the copy out after compute
    transfers.wait_sent(ticket)  # wait 1: compute after the copy out
    free(ops, source)
    ops.compute_reads(target)
    transfers.fetch(ticket, target)  # waits 2 and 3: after the copy out; after what used the target's memory
    transfers.wait_fetched(ticket)  # wait 4: compute after the copy in
    ops.compute_reads(target)


def back_before_it_is_away(ops: CheckingOps) -> None:
    """A fetch right after the send: only its own wait orders it after the copy out."""
    transfers = StreamTransfers(ops, HostStore(pin=False))
    source, target = buffer(), buffer()
    ops.compute_writes(source)
    ticket = transfers.send(source, "host")  # wait 0
    transfers.fetch(ticket, target)  # waits 1 and 2
    transfers.wait_fetched(ticket)  # wait 3
    transfers.wait_sent(ticket)  # wait 4
    ops.compute_reads(target)
    free(ops, source)


def dropped_in_flight(ops: CheckingOps) -> None:
    """An exception between forward and backward: tickets go without their waits, and their memory with them."""
    transfers = StreamTransfers(ops, HostStore(NBYTES, pin=False))
    source, target, other = buffer(), buffer(), buffer()
    ops.compute_writes(source)
    ops.compute_writes(other)
    ticket = transfers.send(source, "host")  # wait 0
    transfers.fetch(ticket, target)  # waits 1 and 2
    del ticket  # wait 3: a later copy out after the copy in; wait 4: compute after both
    gc.collect()
    free(ops, source)
    free(ops, target)
    transfers.wait_sent(transfers.send(other, "host"))  # gets the same place in the host tier


PROGRAMS = [away_and_back, back_before_it_is_away, dropped_in_flight]


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_order_is_right(program: Callable[[CheckingOps], None]) -> None:
    ops = CheckingOps()
    program(ops)
    assert ops.violations == []


MISTAKES = [
    ("compute's result is copied out before it is there", away_and_back, "wait", 0, "copy on side stream 1 reads"),
    ("memory is freed before its copy out is done", away_and_back, "wait", 1, "memory is freed"),
    ("a target is overwritten while compute still uses it", away_and_back, "wait", 3, "copy on side stream 2 writes"),
    ("a target is read before its copy in is done", away_and_back, "wait", 4, "compute reads"),
    ("a fetch is not ordered after its send", back_before_it_is_away, "wait", 1, "copy on side stream 2 reads"),
    ("dropped memory is reused before its copies", dropped_in_flight, "wait", 4, "memory is freed"),
    ("a dropped target is reused before its copy in", dropped_in_flight, "wait", 3, "memory is freed"),
    ("a host place is overwritten while it is copied in", dropped_in_flight, "wait", 3, "copy on side stream 1 writes"),
]


@pytest.mark.parametrize(
    ("program", "kind", "skipped", "words"), [m[1:] for m in MISTAKES], ids=[m[0] for m in MISTAKES]
)
def test_a_mistake_is_caught(program: Callable[[CheckingOps], None], kind: str, skipped: int, words: str) -> None:
    ops = Leaky(kind, skipped)
    program(ops)
    assert any(violation.startswith(words) for violation in ops.violations), ops.violations


class RandomProgram:
    """Steps a plan could ask for: maps are produced, sent, freed, fetched, read, dropped, in any legal order."""

    def __init__(self, ops: CheckingOps) -> None:
        self.ops = ops
        self.transfers = StreamTransfers(ops, HostStore(6 * NBYTES, slab_nbytes=100, pin=False))
        self.memory = [buffer() for _ in range(4)]  # freed buffers, handed out again last in, first out
        self.resident: list[torch.Tensor] = []
        self.sending: list[tuple[StreamTicket, torch.Tensor]] = []
        self.away: list[StreamTicket] = []
        self.fetching: list[tuple[StreamTicket, torch.Tensor]] = []

    def free(self, tensor: torch.Tensor) -> None:
        free(self.ops, tensor)
        self.memory.append(tensor)

    def produce(self) -> None:
        if self.memory:
            self.resident.append(self.memory.pop())
            self.ops.compute_writes(self.resident[-1])

    def use(self) -> None:
        for tensor in self.resident:
            self.ops.compute_reads(tensor)

    def send(self) -> None:
        if self.resident and len(self.sending) + len(self.away) + len(self.fetching) < 6:
            tensor = self.resident.pop(0)
            self.sending.append((self.transfers.send(tensor, "host"), tensor))

    def wait_sent(self) -> None:
        if self.sending:
            ticket, tensor = self.sending.pop(0)
            self.transfers.wait_sent(ticket)
            self.free(tensor)
            self.away.append(ticket)

    def fetch(self) -> None:
        if self.away and self.memory:
            ticket, target = self.away.pop(), self.memory.pop()
            self.transfers.fetch(ticket, target)
            self.fetching.append((ticket, target))

    def wait_fetched(self) -> None:
        if self.fetching:
            ticket, target = self.fetching.pop(0)
            self.transfers.wait_fetched(ticket)
            self.ops.compute_reads(target)
            self.resident.append(target)

    def drop_all(self) -> None:
        lost = [tensor for _, tensor in (*self.sending, *self.fetching)] + self.resident
        self.sending, self.fetching, self.away, self.resident = [], [], [], []
        gc.collect(0)
        for tensor in lost:
            self.free(tensor)


STEPS = ["produce", "use", "send", "wait_sent", "fetch", "wait_fetched", "drop_all"]


@examples(100)
@given(st.lists(st.sampled_from(STEPS), max_size=60))
def test_random_programs_are_in_order(steps: list[str]) -> None:
    ops = CheckingOps()
    program = RandomProgram(ops)
    for step in steps:
        getattr(program, step)()
    assert ops.violations == []


def test_ops_of_a_real_program_are_watched_without_being_told() -> None:
    """A training thread that reads a fetched map without waiting, in plain torch code."""
    ops = CheckingOps()
    transfers = StreamTransfers(ops, HostStore(pin=False))
    with CheckedCompute(ops):
        source = torch.zeros(NBYTES, dtype=torch.uint8) + 1
        ticket = transfers.send(source, "host")
        transfers.wait_sent(ticket)
        del source
        target = torch.empty(NBYTES, dtype=torch.uint8)
        transfers.fetch(ticket, target)
        assert ops.violations == []
        target.add_(1)
    assert any(violation.startswith("compute reads") for violation in ops.violations)


def test_a_storage_freed_by_a_real_program_before_its_copy_is_done_is_noticed() -> None:
    ops = Leaky("wait", 1)
    transfers = StreamTransfers(ops, HostStore(pin=False))
    with CheckedCompute(ops):
        source = torch.zeros(NBYTES, dtype=torch.uint8) + 1
        ticket = transfers.send(source, "host")
        transfers.wait_sent(ticket)  # the wait that is left out
        del source
    assert any(violation.startswith("memory is freed") for violation in ops.violations)


class InlineOps:
    """Streams of a device that does everything at once: what moves is real, order is trivially right."""

    def current_stream(self) -> None: ...

    def new_stream(self) -> None: ...

    def record(self, stream: None) -> None: ...

    def wait(self, stream: None, event: None) -> None: ...

    def synchronize(self, event: None) -> None: ...

    def copy(self, stream: None, target: torch.Tensor, source: torch.Tensor) -> None:
        target.copy_(source)


@pytest.mark.parametrize("tier", ["host", "disk"])
@pytest.mark.parametrize("nbytes", [0, 1, 100_000])
def test_bytes_come_back_through_host_slabs_and_through_the_disk_behind_them(
    tmp_path: Path, tier: str, nbytes: int
) -> None:
    transfers = StreamTransfers(InlineOps(), HostStore(pin=False, slab_nbytes=30_000), DiskStore(tmp_path))
    source = torch.randint(0, 256, (nbytes,), dtype=torch.uint8)
    ticket = transfers.send(source, tier)
    transfers.wait_sent(ticket)
    for _ in range(2):
        target = torch.empty(nbytes, dtype=torch.uint8)
        transfers.fetch(ticket, target)
        transfers.wait_fetched(ticket)
        assert torch.equal(target, source)
    transfers.close()


def test_a_failing_disk_behind_the_host_is_one_clear_error_at_the_fetch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transfers = StreamTransfers(InlineOps(), HostStore(pin=False), DiskStore(tmp_path))
    whole = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda fd, buffers, offset: whole(fd, buffers, offset) - 512)
    ticket = transfers.send(torch.zeros(10_000, dtype=torch.uint8), "disk")
    transfers.wait_sent(ticket)
    transfers.fetch(ticket, torch.empty(10_000, dtype=torch.uint8))
    with pytest.raises(TierFailed, match=r"the disk tier .* bytes were moved"):
        transfers.wait_fetched(ticket)
    transfers.close()
