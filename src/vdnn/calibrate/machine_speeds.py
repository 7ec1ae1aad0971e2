"""The speeds of this machine: arithmetic, memory, disk, codecs. `vdnn doctor` prints them; `this_machine.py` remembers
the planner's own.

Enters: a directory for the disk tier and how large the trials may be. Leaves: `Measurements`, and from them a
`Hardware` whose device tier is RAM. The one idea: measure what training does. Ops write their results to memory that
is new to the process, and the page faults of that cost more than the copy, so the bandwidth of fresh memory is
measured beside that of a buffer which exists already; and copies to and from the disk are timed beside compute, through
the transfers that a step uses (`copies_beside_compute.py`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from mmap import PAGESIZE
from time import perf_counter
from typing import Any

from vdnn.calibrate.codec_trials import codec_speeds
from vdnn.calibrate.copies_beside_compute import BesideCompute, disk_transfers, measure_beside
from vdnn.calibrate.disk_speed import DiskSpeed, measure_disk
from vdnn.hardware.busy_cores import others_share
from vdnn.hardware.device import THIS_MACHINE, CodecSpeed, Hardware, Link, Tier
from vdnn.hardware.machine import cpu_model, num_cores, ram_nbytes
from vdnn.runtime.tiers.direct_io import CHUNK_NBYTES, room_nbytes, usable_nbytes
from vdnn.torch_private import torch_version
from vdnn.units import MiB

ROOM_FOR_TRIALS_NBYTES = 512 * MiB  # the copies beside compute hold a quarter of it, the first trial as much
_TINY_CALLS = 200  # enough calls of a tiny op that reading the clock does not count


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialSizes:
    """How much is computed, copied and written."""

    gemm_dim: int = 2048
    """Square matrices of this side are multiplied."""
    conv_batch: int = 16
    """Images of 64 channels of 56×56 that go through a 3×3 convolution: the second stage of a ResNet."""
    copy_nbytes: int = 256 * MiB
    """Larger than the caches, so that memory is measured."""
    disk_nbytes: int = 512 * MiB
    """Written once and read once."""
    repeats: int = 5
    """The shortest of so many runs counts, after one to warm up."""
    beside_s: float = 0.5
    """How long compute runs alone, and beside each kind of copy."""
    beside_rounds: int = 3
    """How often that is done; the middle counts."""


THOROUGH = TrialSizes()
QUICK = TrialSizes(
    gemm_dim=1024, conv_batch=4, copy_nbytes=24 * MiB, disk_nbytes=64 * MiB, repeats=3, beside_s=0.05, beside_rounds=2
)
"""For a first plan on a new machine: a second or two, in less memory than any budget that is worth naming."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurements:
    """Copy rates count each byte once, though a copy reads and writes it. `disk`, `write` and `read` are None if no
    directory was given; the latter two are the disk tier's copies beside compute. `others_share` is what other
    processes took of the cores meanwhile."""

    cpu: str
    num_cores: int
    ram_nbytes: int
    torch_version: str
    num_threads: int
    gemm_flops_per_s: float
    conv_flops_per_s: float
    copy_fresh_bytes_per_s: float
    copy_preallocated_bytes_per_s: float
    launch_s: float
    disk: DiskSpeed | None = None
    write: BesideCompute | None = None
    read: BesideCompute | None = None
    codecs: tuple[CodecSpeed, ...] = ()
    others_share: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def measure_machine(directory: str | os.PathLike[str] | None = None, sizes: TrialSizes = THOROUGH) -> Measurements:
    """Run every trial. A directory that cannot be used raises `InvalidInput` before anything is measured."""
    share = others_share()
    disk = None if directory is None else measure_disk(directory, sizes.disk_nbytes)
    import torch

    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        fresh, preallocated = _copy_rates(sizes)
        write, read = (None, None) if directory is None else _beside(directory, sizes)
        return Measurements(
            cpu=cpu_model(),
            num_cores=num_cores(),
            ram_nbytes=ram_nbytes(),
            torch_version=torch_version(),
            num_threads=torch.get_num_threads(),
            gemm_flops_per_s=_gemm_rate(sizes),
            conv_flops_per_s=_conv_rate(sizes),
            copy_fresh_bytes_per_s=fresh,
            copy_preallocated_bytes_per_s=preallocated,
            launch_s=_launch_s(),
            disk=disk,
            write=write,
            read=read,
            codecs=codec_speeds(),
            others_share=share(),
        )


def with_disk(known: Measurements, directory: str | os.PathLike[str], sizes: TrialSizes = THOROUGH) -> Measurements:
    """The same machine with another disk, which alone is measured. Trials on a disk with little room are small, and do
    without copies beside compute."""
    import torch

    usable_nbytes(directory, 2 * PAGESIZE)
    room = room_nbytes(directory)
    if room is None or room >= ROOM_FOR_TRIALS_NBYTES:
        disk = measure_disk(directory, sizes.disk_nbytes)
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            write, read = _beside(directory, sizes)
        return replace(known, disk=disk, write=write, read=read)
    chunk_nbytes = max(PAGESIZE, min(CHUNK_NBYTES, 2 ** (room // 4).bit_length() // 2))
    return replace(known, disk=measure_disk(directory, room // 2, chunk_nbytes), write=None, read=None)


def _beside(directory: str | os.PathLike[str], sizes: TrialSizes) -> tuple[BesideCompute, BesideCompute]:
    kernel = _convolution(sizes.conv_batch)[0]
    with disk_transfers(directory) as transfers:
        return measure_beside(transfers, "disk", kernel, seconds=sizes.beside_s, rounds=sizes.beside_rounds)


def hardware_from(measurements: Measurements) -> Hardware:
    """This machine as the planner sees it: RAM is the device, the disk is the tier below. What is free on the disk
    changes by the minute, and is asked for where a plan is made (`options.py`, `compile/disk_room.py`).

    An op reads and writes, so its traffic is twice what the copy rate counts.
    """
    disk = measurements.disk
    sources = [
        ("flops_per_s", f"measured: float32 matrix product on {measurements.num_threads} threads"),
        ("memory_bandwidth_bytes_per_s", "measured: copy into fresh memory, bytes read plus bytes written"),
        ("launch_s", "measured: one addition of four elements"),
        ("device", "read: physical memory, or the container's limit"),
        *([("codecs", "measured: every codec on two sizes")] if measurements.codecs else ()),
    ]
    if disk is not None:
        how = f"{'direct' if disk.is_direct else 'buffered'} I/O in {disk.directory}"
        when = "" if measurements.write is None else ", beside convolutions on every core"
        sources += [
            ("device->disk", f"measured: {how}{when}"),
            ("disk->device", f"measured: {how}{when}"),
        ]
    return Hardware(
        name=THIS_MACHINE,
        flops_per_s=measurements.gemm_flops_per_s,
        memory_bandwidth_bytes_per_s=2 * measurements.copy_fresh_bytes_per_s,
        tiers=(Tier("device", measurements.ram_nbytes), *(() if disk is None else (Tier("disk"),))),
        links=_disk_links(measurements),
        launch_s=measurements.launch_s,
        sources=tuple(sources),
        codecs=measurements.codecs,
    )


def _disk_links(measurements: Measurements) -> tuple[Link, ...]:
    """As a step will see them, beside compute, where that was measured."""
    disk, write, read = measurements.disk, measurements.write, measurements.read
    if disk is None:
        return ()
    if write is None or read is None:
        return Link("device", "disk", disk.write_bytes_per_s), Link("disk", "device", disk.read_bytes_per_s)
    return write.link("device", "disk"), read.link("disk", "device")


def _best_s(run: Callable[[], object], repeats: int) -> float:
    """One run to warm up, then the shortest, as STREAM reports: what else runs on the machine only ever lengthens a
    run.

    What `run` returns is freed inside the measured time, as training frees it too.
    """
    run()
    samples = []
    for _ in range(repeats):
        begin = perf_counter()
        run()
        samples.append(perf_counter() - begin)
    return min(samples)


def _gemm_rate(sizes: TrialSizes) -> float:
    import torch

    dim = sizes.gemm_dim
    left, right = torch.randn(dim, dim), torch.randn(dim, dim)
    return 2 * dim**3 / _best_s(lambda: left @ right, sizes.repeats)


def _conv_rate(sizes: TrialSizes) -> float:
    run, flops = _convolution(sizes.conv_batch)
    return flops / _best_s(run, sizes.repeats)


def _convolution(batch: int) -> tuple[Callable[[], object], int]:
    """A run of it, and its FLOPs."""
    import torch

    channels, side, window = 64, 56, 3
    images = torch.randn(batch, channels, side, side)
    weight = torch.randn(channels, channels, window, window)
    return lambda: torch.conv2d(images, weight, padding=1), 2 * images.numel() * channels * window**2


def _copy_rates(sizes: TrialSizes) -> tuple[float, float]:
    """Bytes per second into memory that is new to the process, and into a buffer that is not."""
    import torch

    source = torch.ones(sizes.copy_nbytes, dtype=torch.uint8)
    fresh_s = _best_s(source.clone, sizes.repeats)
    target = torch.zeros_like(source)  # not before: two of them at a time are enough
    preallocated_s = _best_s(lambda: target.copy_(source), sizes.repeats)
    return sizes.copy_nbytes / fresh_s, sizes.copy_nbytes / preallocated_s


def _launch_s() -> float:
    """What an op costs that has nothing to do."""
    import torch

    tiny = torch.zeros(4)

    def calls() -> None:
        for _ in range(_TINY_CALLS):
            torch.add(tiny, tiny)

    return _best_s(calls, 3) / _TINY_CALLS
