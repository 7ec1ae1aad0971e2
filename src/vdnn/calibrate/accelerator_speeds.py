"""The speeds of an accelerator and of its links to the host. `vdnn doctor` prints them; plans for it rest on them.

Enters: a torch device. Leaves: `AcceleratorSpeeds`, and from them and from the disk a `Hardware` of three tiers: the
device's memory, page-locked memory of the host, the disk. The one idea: the device tells its own time. Work is given to
streams, events stand around it, and nobody waits before all of it is queued; copies run on streams beside compute, as
those of a step do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch

from vdnn.calibrate.codec_trials import codec_speeds
from vdnn.calibrate.copies_beside_compute import BesideCompute
from vdnn.calibrate.machine_speeds import Measurements
from vdnn.hardware.busy_cores import others_share
from vdnn.hardware.clocks import DeviceClock
from vdnn.hardware.device import THIS_MACHINE, CodecSpeed, Hardware, Link, Tier
from vdnn.hardware.machine import ram_nbytes
from vdnn.hardware.where import device_name
from vdnn.torch_private import torch_version
from vdnn.units import KiB, MiB

PINNED_SHARE = 0.5
"""Of the host's memory that may be page-locked: Windows' subsystem for Linux allows half, and the rest of the machine
needs the other half. `host_budget` names less, or more."""

SMALL_NBYTES = 256 * KiB  # its bytes hardly show beside what a copy takes before the first of them
_TINY_CALLS = 200

Work = Callable[[], object]


@dataclass(frozen=True, kw_only=True, slots=True)
class AcceleratorTrials:
    """How much is computed and copied. The device's memory holds two of each."""

    gemm_dim: int = 4096
    copy_nbytes: int = 256 * MiB
    link_nbytes: int = 64 * MiB
    """A copy between host and device, of which two stand on each side."""
    num_copies: int = 8
    rounds: int = 3
    """How often each is done; the middle counts."""


THOROUGH_TRIALS = AcceleratorTrials()
QUICK_TRIALS = AcceleratorTrials(gemm_dim=1024, copy_nbytes=16 * MiB, link_nbytes=8 * MiB, num_copies=4)


@dataclass(frozen=True, kw_only=True, slots=True)
class AcceleratorSpeeds:
    """`to_host` and `to_device` are copies beside compute; the `both` rates are those of each when both directions run
    at once. Where no memory could be page-locked, `is_pinned` is False, and copies were made from ordinary memory."""

    device: str
    name: str
    nbytes: int
    torch_version: str
    gemm_flops_per_s: float
    copy_bytes_per_s: float
    launch_s: float
    to_host: BesideCompute
    to_device: BesideCompute
    both_to_host_bytes_per_s: float
    both_to_device_bytes_per_s: float
    is_pinned: bool
    host_nbytes: int
    codecs: tuple[CodecSpeed, ...] = ()
    others_share: float = 0.0
    free_nbytes: int = 0
    """Before the trials."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def measure_accelerator(where: torch.device, trials: AcceleratorTrials = THOROUGH_TRIALS) -> AcceleratorSpeeds:
    """Run every trial on this device."""
    share, (free_nbytes, device_nbytes) = others_share(), memory_nbytes(where)
    with torch.no_grad(), torch.accelerator.device_index(where.index):
        links = _Links(where, trials)
        out, back = links.beside(links.out), links.beside(links.back)
        both_out, both_back = links.both()
        return AcceleratorSpeeds(
            device=str(where),
            name=device_name(where),
            nbytes=device_nbytes,
            torch_version=torch_version(),
            gemm_flops_per_s=_gemm_rate(where, trials),
            copy_bytes_per_s=_copy_rate(where, trials),
            launch_s=_launch_s(where, trials),
            to_host=out,
            to_device=back,
            both_to_host_bytes_per_s=both_out,
            both_to_device_bytes_per_s=both_back,
            is_pinned=links.is_pinned,
            host_nbytes=int(PINNED_SHARE * ram_nbytes()),
            codecs=codec_speeds(where),
            others_share=share(),
            free_nbytes=free_nbytes,
        )


def accelerator_hardware(speeds: AcceleratorSpeeds, host: Measurements) -> Hardware:
    """The device as the planner sees it, in the machine whose disk was measured."""
    how = "page-locked memory" if speeds.is_pinned else "ordinary memory: none could be page-locked"
    tiers = [Tier("device", speeds.nbytes), Tier("host", speeds.host_nbytes)]
    links = links_of(speeds)
    sources = [
        ("flops_per_s", f"measured: float32 matrix product on {speeds.name}"),
        ("memory_bandwidth_bytes_per_s", "measured: copy on the device, bytes read plus bytes written"),
        ("launch_s", "measured: one addition of four elements"),
        ("device", "read: the device's memory"),
        ("host", f"half of the host's memory; {how}"),
        ("device->host", "measured: beside matrix products"),
        ("host->device", "measured: beside matrix products"),
    ]
    if host.disk is not None:
        where = f"measured: {'direct' if host.disk.is_direct else 'buffered'} I/O in {host.disk.directory}"
        tiers.append(Tier("disk"))
        links += [Link("host", "disk", host.disk.write_bytes_per_s), Link("disk", "host", host.disk.read_bytes_per_s)]
        sources += [("host->disk", where), ("disk->host", where)]
    return Hardware(
        name=THIS_MACHINE,
        flops_per_s=speeds.gemm_flops_per_s,
        memory_bandwidth_bytes_per_s=2 * speeds.copy_bytes_per_s,
        tiers=tuple(tiers),
        links=tuple(links),
        launch_s=speeds.launch_s,
        sources=tuple(sources),
        codecs=speeds.codecs,
    )


def links_of(speeds: AcceleratorSpeeds) -> list[Link]:
    """Between the device and the host, as a step will see them, beside compute."""
    return [speeds.to_host.link("device", "host"), speeds.to_device.link("host", "device")]


def memory_nbytes(where: torch.device) -> tuple[int, int]:
    """What is free on the device, and what it has."""
    free, total = torch.accelerator.get_memory_info(where)
    return free, total


def _middle_s(where: torch.device, work: Work, rounds: int) -> float:
    work()  # libraries warm up
    return median(DeviceClock(where).seconds_of(work) for _ in range(rounds))


def _gemm_rate(where: torch.device, trials: AcceleratorTrials) -> float:
    dim = trials.gemm_dim
    return 2 * dim**3 / max(_middle_s(where, _product(where, dim), trials.rounds), 1e-9)


def _product(where: torch.device, dim: int) -> Work:
    """A matrix product that asks for no memory."""
    left, right = torch.full((dim, dim), 0.5, device=where), torch.full((dim, dim), 0.25, device=where)
    result = torch.empty(dim, dim, device=where)
    return lambda: torch.mm(left, right, out=result)


def _copy_rate(where: torch.device, trials: AcceleratorTrials) -> float:
    source = torch.ones(trials.copy_nbytes, dtype=torch.uint8, device=where)
    target = torch.zeros_like(source)
    return trials.copy_nbytes / max(_middle_s(where, lambda: target.copy_(source), trials.rounds), 1e-9)


def _launch_s(where: torch.device, trials: AcceleratorTrials) -> float:
    tiny, result = torch.zeros(4, device=where), torch.zeros(4, device=where)

    def calls() -> None:
        for _ in range(_TINY_CALLS):
            torch.add(tiny, tiny, out=result)

    return _middle_s(where, calls, trials.rounds) / _TINY_CALLS


class _Direction:
    """Copies one way, on a stream of their own."""

    def __init__(self, where: torch.device, source: torch.Tensor, target: torch.Tensor) -> None:
        self._clock, self._stream = DeviceClock(where), torch.Stream(device=where)
        self._source, self._target = source, target

    def queue(self, num_copies: int, nbytes: int | None = None) -> tuple[torch.Event, torch.Event]:
        """The moments before and after them; nobody waits."""
        with self._stream:
            begin = self._clock.now()
            for _ in range(num_copies):
                self._target[:nbytes].copy_(self._source[:nbytes], non_blocking=True)
            return begin, self._clock.now()

    def seconds(self, num_copies: int, nbytes: int | None = None) -> float:
        return self._clock.seconds(*self.queue(num_copies, nbytes))


class _Links:
    """Both directions between host and device, with memory of their own on either side."""

    def __init__(self, where: torch.device, trials: AcceleratorTrials) -> None:
        self._where, self._trials, self._clock = where, trials, DeviceClock(where)
        self._kernel = _product(where, trials.gemm_dim)
        on_host, self.is_pinned = _host_buffers(trials.link_nbytes)
        on_device = [torch.ones(trials.link_nbytes, dtype=torch.uint8, device=where) for _ in range(2)]
        torch.accelerator.synchronize(where)  # what filled them ran on the compute stream
        self.out = _Direction(where, on_device[0], on_host[0])
        self.back = _Direction(where, on_host[1], on_device[1])
        for direction in (self.out, self.back):
            direction.seconds(1)

    def beside(self, direction: _Direction) -> BesideCompute:
        """One direction while the device computes, and how much compute that costs."""
        trials = self._trials
        alone_s = _middle_s(self._where, self._kernel, trials.rounds)
        num_kernels = max(1, int(0.5 * direction.seconds(trials.num_copies) / alone_s))  # copies outlast them
        large_s, shares = [], []
        for _ in range(trials.rounds):
            copies = direction.queue(trials.num_copies)
            beside_s = self._clock.seconds_of(lambda: [self._kernel() for _ in range(num_kernels)]) / num_kernels
            large_s.append(self._clock.seconds(*copies) / trials.num_copies)
            shares.append(max(0.0, 1 - alone_s / max(beside_s, 1e-9)))
        small_s = median(direction.seconds(trials.num_copies, SMALL_NBYTES) for _ in range(trials.rounds))
        return _line(trials.link_nbytes, median(large_s), small_s / trials.num_copies, median(shares))

    def both(self) -> tuple[float, float]:
        """Bytes per second out and back when both directions run at once."""
        rates: Sequence[list[float]] = ([], [])
        for _ in range(self._trials.rounds):
            queued = [direction.queue(self._trials.num_copies) for direction in (self.out, self.back)]
            for found, moments in zip(rates, queued, strict=True):
                nbytes = self._trials.num_copies * self._trials.link_nbytes
                found.append(nbytes / max(self._clock.seconds(*moments), 1e-9))
        return median(rates[0]), median(rates[1])


def _line(nbytes: int, large_s: float, small_s: float, drag: float) -> BesideCompute:
    """A straight line through both sizes."""
    bandwidth = (nbytes - SMALL_NBYTES) / max(large_s - small_s, 1e-9)
    return BesideCompute(bandwidth, max(0.0, small_s - SMALL_NBYTES / bandwidth), drag)


def _host_buffers(nbytes: int) -> tuple[list[torch.Tensor], bool]:
    """Two of them, and whether they are page-locked."""
    ordinary = [torch.ones(nbytes, dtype=torch.uint8) for _ in range(2)]
    try:
        return [buffer.pin_memory() for buffer in ordinary], True
    except RuntimeError:
        return ordinary, False


def can_page_lock(nbytes: int = QUICK_TRIALS.link_nbytes) -> bool:
    """Whether the system lets this process have page-locked memory now."""
    return _host_buffers(nbytes)[1]
