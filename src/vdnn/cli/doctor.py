"""`vdnn doctor`: how fast this machine computes, copies, and moves bytes to and from its disk; and its accelerator."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table

from vdnn.cli.answer import Answer
from vdnn.report.text import console
from vdnn.units import format_nbytes

if TYPE_CHECKING:
    from vdnn.calibrate.accelerator_speeds import AcceleratorSpeeds
    from vdnn.calibrate.copies_beside_compute import BesideCompute
    from vdnn.calibrate.machine_speeds import Measurements
    from vdnn.hardware.device import CodecSpeed

Directory = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Where the disk tier would be. Default: VDNN_DISK_DIR or /var/tmp.")
]
Quick = Annotated[bool, typer.Option("--quick", help="Smaller trials: three seconds instead of fifteen.")]


def doctor(directory: Directory = None, quick: Quick = False) -> Answer:
    """Measure this machine: arithmetic, memory, codecs, direct disk writes and reads; and the current accelerator, if
    there is one: its memory, and its links to page-locked memory of the host. The planner measures the same by itself,
    once, and remembers it."""
    from vdnn.calibrate.machine_speeds import QUICK, THOROUGH, hardware_from, measure_machine
    from vdnn.environment import disk_dir
    from vdnn.report.pieces import versions

    where = directory if directory is not None else disk_dir()
    with console(stderr=True).status("Measuring this machine"):
        measured = measure_machine(where, QUICK if quick else THOROUGH)
        found = _accelerator(quick)
    record = {
        "schema": "vdnn.doctor",
        "version": 1,
        "measurements": measured.to_json(),
        "hardware": asdict(hardware_from(measured)),
        "accelerator": found if found is None or isinstance(found, str) else _described(found, measured),
        "versions": versions(),
    }
    return Answer(record, lambda width: _view(measured, found, record["versions"]))


def _accelerator(quick: bool) -> AcceleratorSpeeds | str | None:
    """The speeds of the current one, why they cannot be had, or None where there is none."""
    import torch

    from vdnn.calibrate.accelerator_speeds import QUICK_TRIALS, THOROUGH_TRIALS, measure_accelerator
    from vdnn.hardware.where import indexed

    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None:
        return None
    try:
        return measure_accelerator(indexed(accelerator), QUICK_TRIALS if quick else THOROUGH_TRIALS)
    except RuntimeError as error:  # too full, in use by another alone, or broken: the rest is told all the same
        return f"{accelerator} cannot be measured: {str(error).strip().splitlines()[0]}"


def _described(speeds: AcceleratorSpeeds, host: Measurements) -> dict[str, Any]:
    from vdnn.calibrate.accelerator_speeds import accelerator_hardware

    return {"measurements": speeds.to_json(), "hardware": asdict(accelerator_hardware(speeds, host))}


def _view(measured: Measurements, accelerator: AcceleratorSpeeds | str | None, versions: Any) -> RenderableType:
    installed = ", ".join(f"{name} {version}" for name, version in versions.items())
    cores = f"{measured.num_cores} cores, {measured.num_threads} torch threads, {format_nbytes(measured.ram_nbytes)}"
    parts: list[RenderableType] = [f"{measured.cpu}: {cores}", installed, "", _table(_rows(measured))]
    if isinstance(accelerator, str):
        parts += ["", accelerator]
    elif accelerator is not None:
        memory = f"{format_nbytes(accelerator.free_nbytes)} free of {format_nbytes(accelerator.nbytes)}"
        parts += ["", f"{accelerator.device}, {accelerator.name}: {memory}", "", _table(_device_rows(accelerator))]
    return Group(*parts)


def _table(rows: list[tuple[str, str]]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("measured")
    table.add_column("rate", justify="right", no_wrap=True)
    for what, rate in rows:
        table.add_row(what, rate)
    return table


def _rows(measured: Measurements) -> list[tuple[str, str]]:
    rows = [
        ("matrix product, float32", _flops(measured.gemm_flops_per_s)),
        ("3x3 convolution, float32", _flops(measured.conv_flops_per_s)),
        ("copy into fresh memory", _bandwidth(measured.copy_fresh_bytes_per_s)),
        ("copy into memory that exists", _bandwidth(measured.copy_preallocated_bytes_per_s)),
        ("an op that does nothing", f"{measured.launch_s * 1e6:.2f} us"),
    ]
    if measured.disk is not None:
        how = "direct" if measured.disk.is_direct else "buffered (the file system has no direct I/O)"
        rows += [
            (f"disk write, {how}, {measured.disk.directory}", _bandwidth(measured.disk.write_bytes_per_s)),
            (f"disk read, {how}, {measured.disk.directory}", _bandwidth(measured.disk.read_bytes_per_s)),
            (f"free in {measured.disk.directory}", format_nbytes(measured.disk.free_nbytes)),
        ]
    for verb, beside in (("write", measured.write), ("read", measured.read)):
        if beside is not None:
            rows += _beside_rows(f"disk {verb} beside convolutions", beside)
    rows += [(f"{codec.name}, encode and decode", _both(codec)) for codec in measured.codecs]
    return [*rows, ("taken by other processes meanwhile", f"{measured.others_share:.0%} of the cores")]


def _device_rows(speeds: AcceleratorSpeeds) -> list[tuple[str, str]]:
    memory = "page-locked" if speeds.is_pinned else "none page-locked"
    out, back = speeds.both_to_host_bytes_per_s, speeds.both_to_device_bytes_per_s
    return [
        ("matrix product, float32", _flops(speeds.gemm_flops_per_s)),
        ("copy on the device", _bandwidth(speeds.copy_bytes_per_s)),
        ("an op that does nothing", f"{speeds.launch_s * 1e6:.2f} us"),
        ("host memory that maps may take", format_nbytes(speeds.host_nbytes)),
        *_beside_rows(f"copy to the host ({memory}) beside compute", speeds.to_host),
        *_beside_rows(f"copy from the host ({memory}) beside compute", speeds.to_device),
        ("both at once, to the host and from it", f"{out / 1e9:.2f} and {_bandwidth(back)}"),
        *((f"{codec.name}, encode and decode", _both(codec)) for codec in speeds.codecs),
        ("taken by other processes meanwhile", f"{speeds.others_share:.0%} of the cores"),
    ]


def _beside_rows(what: str, beside: BesideCompute) -> list[tuple[str, str]]:
    return [
        (what, _bandwidth(beside.bandwidth_bytes_per_s)),
        ("  and before its first byte", f"{beside.latency_s * 1e6:.0f} us"),
        ("  compute lost while it runs", f"{beside.drag:.0%}"),
    ]


def _both(codec: CodecSpeed) -> str:
    return f"{codec.encode_bytes_per_s / 1e9:.2f} and {_bandwidth(codec.decode_bytes_per_s)}"


def _flops(flops_per_s: float) -> str:
    return f"{flops_per_s / 1e9:.1f} GFLOP/s"


def _bandwidth(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:.2f} GB/s"
