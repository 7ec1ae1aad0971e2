"""Devices by name, for planning without having one in the room.

Enters: a name such as "titan-x". Leaves: a `Hardware` whose `sources` name the origin of every constant. The one
idea: a constant and its source are one value (`Sourced`), so that neither can be written without the other.

All rates are peak rates for float32 on ordinary cores; what tensor cores would add stands in the source text.
Capacities are the whole memory of the board: what the driver and the context keep for themselves has to be left out
of the budget. How much host memory and which drive stand next to a device is not a property of the device, so those
are assumptions, and say so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vdnn.errors import InvalidInput
from vdnn.hardware.device import Hardware, Link, Tier
from vdnn.units import GiB

DMA_EFFICIENCY = 0.8  # vDNN (MICRO 2016) states 12.8 GB/s of effective DMA bandwidth on a 16 GB/s bus

_PCIE_X16_BYTES_PER_S = {3: 16e9, 4: 32e9, 5: 64e9}  # PCI-SIG, nominal rate of 16 lanes in one direction


@dataclass(frozen=True, slots=True)
class Sourced:
    """A constant and where it comes from."""

    value: float
    source: str


@dataclass(frozen=True, slots=True)
class Drive:
    """A disk as its data sheet describes it, reading and writing in sequence."""

    nbytes: int
    read_bytes_per_s: float
    write_bytes_per_s: float
    source: str


LAUNCH = Sourced(7e-6, "assumed: the floor per kernel that the autoparallel planner uses; measured costs replace it")
GEN3_DRIVE = Drive(10**12, 3.5e9, 2.7e9, "assumed drive: Samsung 970 PRO 1 TB data sheet, PCIe gen3 x4")
GEN4_DRIVE = Drive(10**12, 7.45e9, 6.9e9, "assumed drive: Samsung 990 PRO 1 TB data sheet, PCIe gen4 x4")


def pcie(generation: int) -> Sourced:
    """What a copy engine gets out of 16 lanes in one direction."""
    peak = _PCIE_X16_BYTES_PER_S[generation]
    words = f"PCIe gen{generation} x16, {peak / 1e9:.0f} GB/s per direction (PCI-SIG), times {DMA_EFFICIENCY}"
    return Sourced(DMA_EFFICIENCY * peak, f"{words}: the ratio that vDNN (MICRO 2016) states for gen3")


def _an_eighth(memory: str, server: str) -> str:
    return f"assumed: an eighth of the {memory} in the NVIDIA {server} data sheet, which has 8 GPUs"


_VDNN_PAPER = "vDNN (MICRO 2016), evaluation set-up"
_K40 = "NVIDIA Tesla K40 data sheet"
_V100 = "NVIDIA V100 data sheet, SXM2 16 GB"
_A100 = "NVIDIA A100 80GB data sheet, SXM4"
_H100 = "NVIDIA H100 data sheet, SXM5 80 GB"
_ADA = "NVIDIA Ada GPU architecture white paper, GeForce RTX 4090"

# The tables below have a line for each device: its own figures, then what is taken to stand beside it.

FLOPS_PER_S = {
    "titan-x": Sourced(7e12, f"{_VDNN_PAPER}: 7 TFLOPS fp32; Maxwell has no tensor cores"),
    "k40c": Sourced(4.29e12, f"{_K40}: 4.29 TFLOPS fp32 at base clock; Kepler has no tensor cores"),
    "v100": Sourced(15.7e12, f"{_V100}: 15.7 TFLOPS fp32; fp16 tensor cores 125 TFLOPS"),
    "a100-80gb": Sourced(19.5e12, f"{_A100}: 19.5 TFLOPS fp32; TF32 tensor cores 156 TFLOPS dense, bf16 312"),
    "h100": Sourced(67e12, f"{_H100}: 67 TFLOPS fp32; TF32 tensor cores 494 TFLOPS dense, bf16 989"),
    "rtx-4090": Sourced(82.6e12, f"{_ADA}: 82.6 TFLOPS fp32; TF32 tensor cores 82.6 TFLOPS dense, bf16 165.2"),
}
MEMORY_BYTES_PER_S = {
    "titan-x": Sourced(336e9, f"{_VDNN_PAPER}: 336 GB/s GDDR5"),
    "k40c": Sourced(288e9, f"{_K40}: 288 GB/s GDDR5, ECC off"),
    "v100": Sourced(900e9, f"{_V100}: 900 GB/s HBM2"),
    "a100-80gb": Sourced(2039e9, f"{_A100}: 2,039 GB/s HBM2e"),
    "h100": Sourced(3.35e12, f"{_H100}: 3.35 TB/s HBM3"),
    "rtx-4090": Sourced(1008e9, f"{_ADA}: 1,008 GB/s GDDR6X"),
}
MEMORY_NBYTES = {
    "titan-x": Sourced(12 * GiB, f"{_VDNN_PAPER}: 12 GB"),
    "k40c": Sourced(12 * GiB, f"{_K40}: 12 GB"),
    "v100": Sourced(16 * GiB, f"{_V100}: 16 GB"),
    "a100-80gb": Sourced(80 * GiB, f"{_A100}: 80 GB"),
    "h100": Sourced(80 * GiB, f"{_H100}: 80 GB"),
    "rtx-4090": Sourced(24 * GiB, f"{_ADA}: 24 GB"),
}
HOST_NBYTES = {
    "titan-x": Sourced(64 * GiB, f"{_VDNN_PAPER}: 64 GB DDR4"),
    "k40c": Sourced(64 * GiB, "assumed: the 64 GB host of the vDNN paper"),
    "v100": Sourced(64 * GiB, _an_eighth("512 GB", "DGX-1")),
    "a100-80gb": Sourced(256 * GiB, _an_eighth("2 TB", "DGX A100")),
    "h100": Sourced(256 * GiB, _an_eighth("2 TB", "DGX H100")),
    "rtx-4090": Sourced(64 * GiB, "assumed: a desktop with 64 GB"),
}
BUS_AND_DRIVE = {
    "titan-x": (Sourced(12.8e9, f"{_VDNN_PAPER}: 12.8 GB/s effective of PCIe gen3 x16"), GEN3_DRIVE),
    "k40c": (pcie(3), GEN3_DRIVE),
    "v100": (pcie(3), GEN3_DRIVE),
    "a100-80gb": (pcie(4), GEN4_DRIVE),
    "h100": (pcie(5), GEN4_DRIVE),
    "rtx-4090": (pcie(4), GEN4_DRIVE),
}


def _hardware(name: str) -> Hardware:
    """Three tiers in a row, a link each way between neighbours, and a source for each number."""
    flops, bandwidth, memory = FLOPS_PER_S[name], MEMORY_BYTES_PER_S[name], MEMORY_NBYTES[name]
    host, (bus, drive) = HOST_NBYTES[name], BUS_AND_DRIVE[name]
    return Hardware(
        name=name,
        flops_per_s=flops.value,
        memory_bandwidth_bytes_per_s=bandwidth.value,
        tiers=(Tier("device", int(memory.value)), Tier("host", int(host.value)), Tier("disk", drive.nbytes)),
        links=(
            Link("device", "host", bus.value),
            Link("host", "device", bus.value),
            Link("host", "disk", drive.write_bytes_per_s),
            Link("disk", "host", drive.read_bytes_per_s),
        ),
        launch_s=LAUNCH.value,
        sources=(
            ("flops_per_s", flops.source),
            ("memory_bandwidth_bytes_per_s", bandwidth.source),
            ("device", memory.source),
            ("host", host.source),
            ("disk", drive.source),
            ("device->host", bus.source),
            ("host->device", bus.source),
            ("host->disk", drive.source),
            ("disk->host", drive.source),
            ("launch_s", LAUNCH.source),
        ),
    )


PRESETS: Mapping[str, Hardware] = {name: _hardware(name) for name in FLOPS_PER_S}

ALIASES = {"a100": "a100-80gb"}
"""What people say for a device that comes in several sizes."""


def preset(name: str) -> Hardware:
    """The device of that name, in any case; an unknown one raises `InvalidInput` that lists the names."""
    known = PRESETS.get(ALIASES.get(name.lower(), name.lower()))
    if known is None:
        raise InvalidInput(f"no device is called {name!r}. Devices by name: {', '.join(PRESETS)}.")
    return known
