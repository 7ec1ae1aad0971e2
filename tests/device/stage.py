"""Where a claim about the order of transfers runs: the device for tests, late in one of two ways, or vector clocks.

Enters: transfers, as they are or without one call (`mutants.py`). Leaves: an error if a byte was read too early,
overwritten too early, or (on vector clocks) could have been. A claim is written once and cannot tell where it runs.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from device import controls
from device.mutants import Mutant, Parts
from vdnn.runtime.tiers.disk import DiskStore
from vdnn.runtime.tiers.host import HostStore
from vdnn.runtime.tiers.store import Place
from vdnn.runtime.transfers.checking import CheckedCompute, CheckingOps
from vdnn.units import KiB

NUMEL, NUM_PIECES = 16 * KiB, 8  # a copy is several ops, so that a delay of each makes it longer than any other
NBYTES = 4 * NUMEL
NUM_MAPS = 4  # as many as a claim makes
BUSY_UNITS = 4
WRITTEN_S = 10.0
NUM_REUSED = 4  # more than the free blocks of its size that lie before the one a claim has freed

_values = itertools.count(1)  # no two maps of a run are alike: what lies in old memory is never right


@dataclass(frozen=True)
class Mode:
    """What is slow. `unit_s` is about as long as a copy takes."""

    name: str
    unit_s: float = 0.0
    copy_s: float = 0.0
    delay_s: float = 0.0
    is_poisoned: bool = False

    def slower(self) -> Mode:
        """For a machine that has more to do: a race that it decided otherwise is run again."""
        return replace(self, unit_s=4 * self.unit_s, copy_s=4 * self.copy_s, delay_s=4 * self.delay_s)


SLOW_COPIES = Mode("slow copies", unit_s=0.005, copy_s=0.005, is_poisoned=True)
LATE_OPS = Mode("late ops", unit_s=0.005, delay_s=0.0005)
CLOCKS = Mode("clocks")


class LatePlace:
    def __init__(self, disk: LateDisk, place: Place) -> None:
        self._disk, self._place = disk, place
        self.nbytes = place.nbytes

    def write(self, source: torch.Tensor) -> None:
        """The memory that the bytes came through is then full of others: who reads too early does not find them."""
        time.sleep(self._disk.write_s)
        self._place.write(source)
        source.fill_(255)
        self._disk.num_written += 1

    def read(self, target: torch.Tensor) -> None:
        time.sleep(self._disk.read_s)
        self._place.read(target)


class LateDisk(DiskStore):
    """A disk that thinks before it moves anything."""

    read_s = write_s = 0.0
    num_reserved = num_written = 0  # each counted by one thread

    def reserve(self, nbytes: int) -> Any:
        place = LatePlace(self, super().reserve(nbytes))
        self.num_reserved += 1
        return place

    @property
    def num_unwritten(self) -> int:
        return self.num_reserved - self.num_written


class Stage:
    """One run of a claim: transfers on a device of one mode, and what compute does beside them."""

    def __init__(self, mutant: Mutant | None, mode: Mode, folder: Path) -> None:
        self.mode = mode
        self._folder = folder
        self._checking = CheckingOps() if mode == CLOCKS else None
        self._device = torch.device("cpu") if self._checking else torch.accelerator.current_accelerator()
        self.parts = Parts.without(mutant, dict if self._checking else torch.Event)
        self._threads = set(threading.enumerate())
        self._seen: list[tuple[Sequence[torch.Tensor], int]] = []
        if self._checking is None:
            controls.reset()
        self._next = itertools.cycle([self._constant() for _ in range(NUM_MAPS)])
        self._others = [self._constant() for _ in range(NUM_REUSED)]
        if self._checking is None:
            controls.set_poison(mode.is_poisoned)
            controls.set_copy_rate(NBYTES / mode.copy_s if mode.copy_s else 0)
            controls.set_delay(round(mode.delay_s * 1e6))

    def _constant(self) -> tuple[torch.Tensor, int]:
        value = next(_values)
        return torch.full((NUMEL,), value, dtype=torch.int32, device=self._device).view(torch.uint8), value

    def compute(self) -> AbstractContextManager[Any]:
        return CheckedCompute(self._checking) if self._checking else nullcontext()

    def open(self, host_nbytes: int | None = None, disk_nbytes: int | None = None) -> Any:
        """Transfers with several slabs per map, and a disk that is late when `disk_is_late` says so."""
        is_pinned = self._checking is None
        host = HostStore(host_nbytes, pin=is_pinned, slab_nbytes=NBYTES // NUM_PIECES)
        self.disk = LateDisk(self._folder, disk_nbytes)
        self.transfers = self.parts.streams.StreamTransfers(
            self._checking or self.parts.stream_ops.AcceleratorOps(self._device), host, self.disk
        )
        return self.transfers

    def disk_is_late(self, *, read_units: float = 0, write_units: float = 0) -> None:
        self.disk.read_s, self.disk.write_s = read_units * self.mode.unit_s, write_units * self.mode.unit_s

    # What compute does: all of it is queued, and the caller goes on

    def busy(self) -> None:
        if self._checking is None:
            controls.sleep(BUSY_UNITS * self.mode.unit_s)

    def empty(self) -> torch.Tensor:
        return torch.empty(NBYTES, dtype=torch.uint8, device=self._device)

    def made(self) -> tuple[torch.Tensor, int]:
        """A map and the number it is full of."""
        constant, value = next(self._next)
        return self.empty().copy_(constant), value  # an op that is queued, as filling is not

    def makes_more(self) -> list[tuple[torch.Tensor, int]]:
        """What is freed by now is handed out again and overwritten."""
        return [(self.empty().copy_(constant), value) for constant, value in self._others]

    def reads(self, tensor: torch.Tensor, value: int) -> None:
        """Compute reads what is there at this point of its stream, and finds the map."""
        self._seen.append(([self.empty().copy_(tensor)], value))

    # What is looked at

    def ends_as(self, pieces: Sequence[torch.Tensor], value: int) -> None:
        """When everything is done."""
        self._seen.append((pieces, value))

    def holds(self, pieces: Sequence[torch.Tensor], value: int) -> None:
        """Now, for the host."""
        if self._checking is None:
            assert _are_all(pieces, value), "the host reads other bytes"

    def threads(self) -> set[threading.Thread]:
        return {thread for thread in set(threading.enumerate()) - self._threads if thread.is_alive()}

    def look(self) -> None:
        if self._checking is not None:
            assert not self._checking.violations, self._checking.violations[0]
            return
        torch.accelerator.synchronize()
        controls.set_copy_rate(0)
        assert all(_are_all(pieces, value) for pieces, value in self._seen), "other bytes than a map's are found"

    def end(self) -> None:
        if self._checking is None:
            controls.reset()
        self.transfers.close()

    # Moves that several claims begin or end with

    def away(self, tier: str = "host") -> tuple[Any, int]:
        """A map that has left, and nothing of it is found in free memory: all of that is done."""
        source, value = self.made()
        ticket = self.transfers.send(source, tier)
        self.transfers.wait_sent(ticket)
        del source
        self.makes_more()
        if self._checking is None:
            torch.accelerator.synchronize()
        begin = time.monotonic()
        while self.disk.num_unwritten:
            assert time.monotonic() - begin < WRITTEN_S, "a map does not arrive on the disk"
            time.sleep(0.001)
        return ticket, value

    def comes_back(self, ticket: Any, value: int, target: torch.Tensor | None = None) -> None:
        target = self.empty() if target is None else target
        self.transfers.fetch(ticket, target)
        self.transfers.wait_fetched(ticket)
        self.reads(target, value)


def _are_all(pieces: Sequence[torch.Tensor], value: int) -> bool:
    return bool((torch.cat([piece.cpu() for piece in pieces]).view(torch.int32) == value).all())
