"""`vdnn doctor`: how fast this machine computes, copies, and moves bytes to and from its disk."""

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
    from vdnn.calibrate.machine_speeds import Measurements
    from vdnn.hardware.device import CodecSpeed

Directory = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Where the disk tier would be. Default: VDNN_DISK_DIR or /var/tmp.")
]
Quick = Annotated[bool, typer.Option("--quick", help="Smaller trials: three seconds instead of fifteen.")]


def doctor(directory: Directory = None, quick: Quick = False) -> Answer:
    """Measure this machine: arithmetic, memory, codecs, direct disk writes and reads. The planner measures the same by
    itself, once, and remembers it."""
    from vdnn.calibrate.machine_speeds import QUICK, THOROUGH, hardware_from, measure_machine
    from vdnn.environment import disk_dir
    from vdnn.report.pieces import versions

    where = directory if directory is not None else disk_dir()
    with console(stderr=True).status("Measuring this machine"):
        measured = measure_machine(where, QUICK if quick else THOROUGH)
    record = {
        "schema": "vdnn.doctor",
        "version": 1,
        "measurements": measured.to_json(),
        "hardware": asdict(hardware_from(measured)),
        "versions": versions(),
    }
    return Answer(record, lambda width: _view(measured, record["versions"]))


def _view(measured: Measurements, versions: Any) -> RenderableType:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("measured")
    table.add_column("rate", justify="right", no_wrap=True)
    for what, rate in _rows(measured):
        table.add_row(what, rate)
    installed = ", ".join(f"{name} {version}" for name, version in versions.items())
    cores = f"{measured.num_cores} cores, {measured.num_threads} torch threads, {format_nbytes(measured.ram_nbytes)}"
    return Group(f"{measured.cpu}: {cores}", installed, "", table)


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
            rows += [
                (f"disk {verb} beside convolutions", _bandwidth(beside.bandwidth_bytes_per_s)),
                ("  and before its first byte", f"{beside.latency_s * 1e6:.0f} us"),
                ("  compute lost while it runs", f"{beside.drag:.0%}"),
            ]
    rows += [(f"{codec.name}, encode and decode", _both(codec)) for codec in measured.codecs]
    return [*rows, ("taken by other processes meanwhile", f"{measured.others_share:.0%} of the cores")]


def _both(codec: CodecSpeed) -> str:
    return f"{codec.encode_bytes_per_s / 1e9:.2f} and {_bandwidth(codec.decode_bytes_per_s)}"


def _flops(flops_per_s: float) -> str:
    return f"{flops_per_s / 1e9:.1f} GFLOP/s"


def _bandwidth(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:.2f} GB/s"
