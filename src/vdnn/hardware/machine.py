"""What this machine is, read rather than measured: processor, cores, memory, torch.

Leaves plain values, and a fingerprint: two runs with the same fingerprint may share measurements.
"""

from __future__ import annotations

import os
import platform
from functools import cache
from pathlib import Path

from vdnn.torch_private import torch_version

_CPUINFO = Path("/proc/cpuinfo")
_MOUNTS = Path("/proc/self/mountinfo")  # Linux, Documentation/filesystems/proc.rst, 3.5
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")  # cgroup v2; "max" when there is no limit


@cache
def cpu_model() -> str:
    """The name the processor gives itself."""
    if _CPUINFO.exists():
        for line in _CPUINFO.read_text().splitlines():
            name, _, model = line.partition(":")
            if name.strip() == "model name":
                return model.strip()
    return platform.processor() or platform.machine() or "unknown processor"


def num_cores() -> int:
    """Cores this process may use, which in a container can be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def ram_nbytes() -> int:
    """Memory of the machine, or of the container when that is less."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = _CGROUP_LIMIT.read_text().strip() if _CGROUP_LIMIT.exists() else "max"
    return min(total, int(limit)) if limit.isdigit() else total


def file_system_of(directory: str | os.PathLike[str]) -> str:
    """What the disk under a directory is known by: its file system's type and device, or where it is mounted if it has
    no device, as one in RAM. Where the system does not say, the directory itself."""
    number = os.stat(directory).st_dev
    wanted, found = f"{os.major(number)}:{os.minor(number)}", os.path.realpath(directory)
    for line in _MOUNTS.read_text().splitlines() if _MOUNTS.exists() else ():
        mount, _, kind = line.partition(" - ")
        _, _, device, _, where, *_ = mount.split()
        if device == wanted:
            name, source, *_ = kind.split()
            found = f"{name} {source}" if "/" in source or ":" in source else f"{name} at {where}"
    return found


def fingerprint(where: str = "cpu") -> str:
    """All that makes the same op on the same shapes take another time or another workspace. `where` it runs; two
    accelerators of one name are alike."""
    import torch

    from vdnn.hardware.where import device_name

    if where != "cpu":
        return " | ".join((device_name(torch.device(where)), *_kernel_choices(where), _in_general()))
    return _in_general()


def _kernel_choices(where: str) -> tuple[str, ...]:
    """Settings by which libraries of accelerators choose among kernels."""
    import torch

    cudnn = torch.backends.cudnn
    settings = (cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32)
    return () if not where.startswith("cuda") else (f"cudnn {settings}",)


def _in_general() -> str:
    import torch

    return " | ".join(
        (
            cpu_model(),
            f"{num_cores()} cores",
            f"torch {torch_version()}",
            f"{torch.get_num_threads()} threads",
            torch.backends.cpu.get_cpu_capability(),
            f"mkldnn {'on' if torch.backends.mkldnn.enabled else 'off'}",
            f"fp32 matmul {torch.get_float32_matmul_precision()}",
            f"deterministic {'on' if torch.are_deterministic_algorithms_enabled() else 'off'}",
        )
    )
