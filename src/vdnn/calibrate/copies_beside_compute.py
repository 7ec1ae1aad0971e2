"""What compute and copies do to each other: how fast copies are beside busy cores, and how much compute they cost.

Enters: the transfers that a training step uses, and a kernel that keeps every core busy. Leaves: a `BesideCompute` for
each direction. The one idea: run the kernel over and over while another thread keeps copies under way, in pairs with
runs of the kernel alone, because the speed of a shared machine drifts.

    drag       1 - kernel seconds alone / kernel seconds beside copies: compute lost per second of copying
    bandwidth  from the time of large copies
    latency    what small copies take beyond their bytes

Copies are queued several at a time, as a step queues them, and go over parts of the file that exist already, as they
do from the second step on.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from threading import Event
from time import perf_counter
from typing import Any, Protocol

from vdnn.cost.stopwatch import Run
from vdnn.hardware.device import Link
from vdnn.runtime.tiers.disk import DiskStore
from vdnn.runtime.transfers.threads import ThreadTransfers
from vdnn.units import KiB, MiB

LARGE_NBYTES = 8 * MiB  # one chunk of the disk tier: its latency hardly shows, and a few of them are little memory
SMALL_NBYTES = 256 * KiB  # one system call: its bytes hardly show
NUM_QUEUED = 4  # enough that the worker of a direction never waits for its next copy


class CopiesTensors(Protocol):
    """What is measured: the part of the runtime's transfers that copies one tensor out, and back."""

    def send(self, source: Any, tier: str) -> Any: ...

    def wait_sent(self, ticket: Any) -> None: ...

    def fetch(self, ticket: Any, target: Any) -> None: ...

    def wait_fetched(self, ticket: Any) -> None: ...


@contextmanager
def disk_transfers(directory: str | os.PathLike[str]) -> Iterator[ThreadTransfers]:
    """To and from a disk tier of its own in `directory`, closed when the trial is over."""
    transfers = ThreadTransfers({"disk": DiskStore(directory)})
    try:
        yield transfers
    finally:
        transfers.close()


@dataclass(frozen=True, slots=True)
class BesideCompute:
    """One direction of a link while every core computes."""

    bandwidth_bytes_per_s: float
    latency_s: float
    drag: float

    def link(self, source: str, target: str) -> Link:
        return Link(source, target, self.bandwidth_bytes_per_s, self.latency_s, self.drag)


def measure_beside(
    transfers: CopiesTensors, tier: str, kernel: Run, *, seconds: float, rounds: int
) -> tuple[BesideCompute, BesideCompute]:
    """Out and back. Each of the `rounds` runs the kernel alone and beside large copies, for `seconds` each; small
    copies have a round of their own."""
    directions = (_writes, _reads)
    large = [make(transfers, tier, LARGE_NBYTES) for make in directions]
    small = [make(transfers, tier, SMALL_NBYTES) for make in directions]
    for copies in (*large, *small, kernel):
        copies()  # the file grows, libraries warm up
    out, back = (_direction(kernel, one, other, seconds, rounds) for one, other in zip(large, small, strict=True))
    return out, back


def _direction(kernel: Run, large: Run, small: Run, seconds: float, rounds: int) -> BesideCompute:
    shares: list[float] = []
    large_s: list[float] = []
    small_s: list[float] = []
    _beside(small, kernel, seconds, small_s)
    for _ in range(rounds):
        alone_s = _kernel_s(kernel, seconds)
        beside_s = _beside(large, kernel, seconds, large_s)
        shares.append(1 - alone_s / beside_s)
    per_large_s, per_small_s = (median(samples) / NUM_QUEUED for samples in (large_s, small_s))
    bandwidth = (LARGE_NBYTES - SMALL_NBYTES) / max(per_large_s - per_small_s, 1e-9)
    latency_s = max(0.0, per_small_s - SMALL_NBYTES / bandwidth)
    return BesideCompute(bandwidth, latency_s, max(0.0, median(shares)))


def _beside(copies: Run, kernel: Run, seconds: float, taken_s: list[float]) -> float:
    """Seconds of one kernel while another thread copies; what each lot of copies took is added to `taken_s`."""
    is_over = Event()
    with ThreadPoolExecutor(1, "vdnn-trial") as pool:
        copying = pool.submit(_copy_until, is_over, copies)
        try:
            kernel_s = _kernel_s(kernel, seconds)
        finally:
            is_over.set()
        lots = copying.result()
    taken_s += lots[:-1] or lots  # the last one may have run on after the kernel
    return kernel_s


def _copy_until(is_over: Event, copies: Run) -> list[float]:
    taken_s: list[float] = []
    while not is_over.is_set():
        begin = perf_counter()
        copies()
        taken_s.append(perf_counter() - begin)
    return taken_s


def _kernel_s(kernel: Run, seconds: float) -> float:
    """Mean over so many runs as fit into `seconds`: the pauses that copies cause belong to it."""
    begin, runs = perf_counter(), 0
    while (elapsed := perf_counter() - begin) < seconds or not runs:
        kernel()
        runs += 1
    return elapsed / runs


def _writes(transfers: CopiesTensors, tier: str, nbytes: int) -> Run:
    source = _random_bytes(nbytes)

    def copies() -> None:
        for ticket in [transfers.send(source, tier) for _ in range(NUM_QUEUED)]:
            transfers.wait_sent(ticket)

    return copies


def _reads(transfers: CopiesTensors, tier: str, nbytes: int) -> Run:
    """Into memory that is new to the process, as a step's fetches are."""
    import torch

    source = _random_bytes(nbytes)
    tickets = [transfers.send(source, tier) for _ in range(NUM_QUEUED)]
    for ticket in tickets:
        transfers.wait_sent(ticket)

    def copies() -> None:
        targets = [torch.empty(nbytes, dtype=torch.uint8) for _ in tickets]
        for ticket, target in zip(tickets, targets, strict=True):
            transfers.fetch(ticket, target)
        for ticket in tickets:
            transfers.wait_fetched(ticket)

    return copies


def _random_bytes(nbytes: int) -> Any:
    """Random, because some disks compress."""
    import torch

    return torch.randint(0, 256, (nbytes,), dtype=torch.uint8)
