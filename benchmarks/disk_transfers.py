"""Transfers to disk and back, as a training step makes them, over raw direct I/O on the same disk.

Raw is what `vdnn doctor` measures: one thread, one aligned buffer, 8 MiB at a time. Transfers start from tensors as
torch allocates them, and come back twice: into memory that has been in use before, as raw does, and into tensors that
were just allocated, where the system clears every page first, which costs processor time that raw does not need. Raw
and transfers alternate, so that whatever else the machine does falls on both; the figure is the ratio of medians. The
second line keeps every core busy with convolutions meanwhile, for raw as well.

    python benchmarks/disk_transfers.py
    python benchmarks/disk_transfers.py --count 64 --nbytes 64MiB --rounds 3
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from statistics import median

import torch

from vdnn.calibrate.disk_speed import measure_disk
from vdnn.environment import disk_dir
from vdnn.runtime.tiers.disk import DiskStore
from vdnn.runtime.transfers.interface import Ticket
from vdnn.runtime.transfers.threads import ThreadTransfers
from vdnn.units import format_nbytes, parse_nbytes


@dataclass(frozen=True)
class Rates:
    """Bytes per second, each way."""

    write: float
    read: float
    read_new: float


def raw(directory: str, nbytes: int) -> Rates:
    speed = measure_disk(directory, nbytes)
    return Rates(speed.write_bytes_per_s, speed.read_bytes_per_s, speed.read_bytes_per_s)


def transfers(engine: ThreadTransfers, sources: list[torch.Tensor], count: int) -> Rates:
    """Send `count` tensors without waiting in between; then bring each back, two fetches ahead."""
    nbytes = count * sources[0].numel()
    begin = time.perf_counter()
    tickets = [engine.send(sources[k % len(sources)], "disk") for k in range(count)]
    for ticket in tickets:
        engine.wait_sent(ticket)
    sent_s = time.perf_counter() - begin
    used = [torch.zeros_like(sources[0]) for _ in range(3)]
    read_s = bring_back(engine, tickets, lambda k: used[k % 3])
    read_new_s = bring_back(engine, tickets, lambda k: torch.empty_like(sources[0]))
    return Rates(nbytes / sent_s, nbytes / read_s, nbytes / read_new_s)


def bring_back(engine: ThreadTransfers, tickets: list[Ticket], target_of: Callable[[int], torch.Tensor]) -> float:
    """Seconds to fetch every ticket."""
    begin = time.perf_counter()
    targets: dict[int, torch.Tensor] = {}
    for k in range(len(tickets) + 2):
        if k < len(tickets):
            targets[k] = target_of(k)
            engine.fetch(tickets[k], targets[k])
        if k >= 2:
            engine.wait_fetched(tickets[k - 2])
            del targets[k - 2]
    return time.perf_counter() - begin


@contextmanager
def busy_cores() -> Iterator[None]:
    """Convolutions, one after the other, on all of torch's threads."""
    is_over = threading.Event()

    def convolve() -> None:
        images, kernel = torch.randn(4, 64, 56, 56), torch.randn(64, 64, 3, 3)
        while not is_over.is_set():
            torch.nn.functional.conv2d(images, kernel, padding=1)

    thread = threading.Thread(target=convolve)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def compare(directory: str, count: int, nbytes: int, rounds: int, *, is_busy: bool) -> str:
    sources = [torch.randint(0, 256, (nbytes,), dtype=torch.uint8) for _ in range(4)]
    engine = ThreadTransfers({"disk": DiskStore(directory)})
    raws, ours = [], []
    with busy_cores() if is_busy else nullcontext():
        transfers(engine, sources, count)  # the file gets its blocks, as in the first step of a training
        for _ in range(rounds):
            raws.append(raw(directory, count * nbytes))
            ours.append(transfers(engine, sources, count))
    engine.close()
    cells = []
    for way, words in (("write", "write"), ("read", "read"), ("read_new", "read into new memory")):
        raw_rate, our_rate = (median(getattr(rates, way) for rates in series) for series in (raws, ours))
        cells.append(f"{words} {our_rate / 1e9:5.2f} of {raw_rate / 1e9:5.2f} GB/s = {our_rate / raw_rate:5.2f}")
    return f"{'cores busy' if is_busy else 'cores idle':12} " + "   ".join(cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", default=str(disk_dir()))
    parser.add_argument("--count", type=int, default=32)
    parser.add_argument("--nbytes", type=parse_nbytes, default=parse_nbytes("64MiB"))
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    print(f"{arguments.count} tensors of {format_nbytes(arguments.nbytes)} in {arguments.directory}")
    for is_busy in (False, True):
        print(compare(arguments.directory, arguments.count, arguments.nbytes, arguments.rounds, is_busy=is_busy))


if __name__ == "__main__":
    main()
