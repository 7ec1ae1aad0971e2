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


def _hardware(
    name: str, *, flops: Sourced, bandwidth: Sourced, memory: Sourced, bus: Sourced, host: Sourced, drive: Drive
) -> Hardware:
    """Three tiers in a row, a link each way between neighbours, and a source for each number."""
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


_VDNN_PAPER = "vDNN (MICRO 2016), evaluation set-up"
_K40 = "NVIDIA Tesla K40 data sheet"
_V100 = "NVIDIA V100 data sheet, SXM2 16 GB"
_A100 = "NVIDIA A100 80GB data sheet, SXM4"
_H100 = "NVIDIA H100 data sheet, SXM5 80 GB"
_ADA = "NVIDIA Ada GPU architecture white paper, GeForce RTX 4090"

PRESETS: Mapping[str, Hardware] = {
    hardware.name: hardware
    for hardware in (
        _hardware(
            "titan-x",
            flops=Sourced(7e12, f"{_VDNN_PAPER}: 7 TFLOPS fp32; Maxwell has no tensor cores"),
            bandwidth=Sourced(336e9, f"{_VDNN_PAPER}: 336 GB/s GDDR5"),
            memory=Sourced(12 * GiB, f"{_VDNN_PAPER}: 12 GB"),
            bus=Sourced(12.8e9, f"{_VDNN_PAPER}: 12.8 GB/s effective of PCIe gen3 x16"),
            host=Sourced(64 * GiB, f"{_VDNN_PAPER}: 64 GB DDR4"),
            drive=GEN3_DRIVE,
        ),
        _hardware(
            "k40c",
            flops=Sourced(4.29e12, f"{_K40}: 4.29 TFLOPS fp32 at base clock; Kepler has no tensor cores"),
            bandwidth=Sourced(288e9, f"{_K40}: 288 GB/s GDDR5, ECC off"),
            memory=Sourced(12 * GiB, f"{_K40}: 12 GB"),
            bus=pcie(3),
            host=Sourced(64 * GiB, "assumed: the 64 GB host of the vDNN paper"),
            drive=GEN3_DRIVE,
        ),
        _hardware(
            "v100",
            flops=Sourced(15.7e12, f"{_V100}: 15.7 TFLOPS fp32; fp16 tensor cores 125 TFLOPS"),
            bandwidth=Sourced(900e9, f"{_V100}: 900 GB/s HBM2"),
            memory=Sourced(16 * GiB, f"{_V100}: 16 GB"),
            bus=pcie(3),
            host=Sourced(64 * GiB, "assumed: an eighth of the 512 GB in the NVIDIA DGX-1 data sheet, which has 8 GPUs"),
            drive=GEN3_DRIVE,
        ),
        _hardware(
            "a100-80gb",
            flops=Sourced(19.5e12, f"{_A100}: 19.5 TFLOPS fp32; TF32 tensor cores 156 TFLOPS dense, bf16 312"),
            bandwidth=Sourced(2039e9, f"{_A100}: 2,039 GB/s HBM2e"),
            memory=Sourced(80 * GiB, f"{_A100}: 80 GB"),
            bus=pcie(4),
            host=Sourced(
                256 * GiB, "assumed: an eighth of the 2 TB in the NVIDIA DGX A100 data sheet, which has 8 GPUs"
            ),
            drive=GEN4_DRIVE,
        ),
        _hardware(
            "h100",
            flops=Sourced(67e12, f"{_H100}: 67 TFLOPS fp32; TF32 tensor cores 494 TFLOPS dense, bf16 989"),
            bandwidth=Sourced(3.35e12, f"{_H100}: 3.35 TB/s HBM3"),
            memory=Sourced(80 * GiB, f"{_H100}: 80 GB"),
            bus=pcie(5),
            host=Sourced(
                256 * GiB, "assumed: an eighth of the 2 TB in the NVIDIA DGX H100 data sheet, which has 8 GPUs"
            ),
            drive=GEN4_DRIVE,
        ),
        _hardware(
            "rtx-4090",
            flops=Sourced(82.6e12, f"{_ADA}: 82.6 TFLOPS fp32; TF32 tensor cores 82.6 TFLOPS dense, bf16 165.2"),
            bandwidth=Sourced(1008e9, f"{_ADA}: 1,008 GB/s GDDR6X"),
            memory=Sourced(24 * GiB, f"{_ADA}: 24 GB"),
            bus=pcie(4),
            host=Sourced(64 * GiB, "assumed: a desktop with 64 GB"),
            drive=GEN4_DRIVE,
        ),
    )
}


ALIASES = {"a100": "a100-80gb"}
"""What people say for a device that comes in several sizes."""


def preset(name: str) -> Hardware:
    """The device of that name, in any case; an unknown one raises `InvalidInput` that lists the names."""
    known = PRESETS.get(ALIASES.get(name.lower(), name.lower()))
    if known is None:
        raise InvalidInput(f"no device is called {name!r}. Devices by name: {', '.join(PRESETS)}.")
    return known
