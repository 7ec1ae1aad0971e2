"""The environment variables vdnn reads, all of them: no other file looks at `os.environ`.

Enters: the process's environment. Leaves: paths and a few switches. Everything else arrives as an argument.
`docs/environment.md` lists the variables.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

CACHE_DIR = "VDNN_CACHE_DIR"
DISK_DIR = "VDNN_DISK_DIR"
NATIVE = "VDNN_NATIVE"
PLAN_CACHE = "VDNN_PLAN_CACHE"
SKIP_PASSES = "VDNN_SKIP_PASSES"
STEP_MEMORY = "VDNN_STEP_MEMORY"
COMPILER = "CXX"
CGROUP = "VDNN_CGROUP"


def cache_dir() -> Path:
    """Where measured op costs, this machine's speeds and plans are kept. Made when there is something to keep."""
    configured = os.environ.get(CACHE_DIR)
    return Path(configured).expanduser() if configured else default_cache_dir()


def default_cache_dir() -> Path:
    """The cache of who names none: a folder of vdnn alone, which it closes to others."""
    return Path.home() / ".cache" / "vdnn"


def disk_dir() -> Path:
    """Where the disk tier puts its private file, and whose speed is measured for it.

    /var/tmp comes before the usual temporary directory because the latter is often a file system in RAM, and moving a
    tensor from RAM to RAM frees nothing.
    """
    configured = os.environ.get(DISK_DIR)
    if configured:
        return Path(configured).expanduser()
    persistent = Path("/var/tmp")
    return persistent if os.access(persistent, os.W_OK) else Path(tempfile.gettempdir())


def native_kernels() -> bool:
    """Whether codecs may use their C and Triton kernels; "0" leaves those in numpy and torch ops, to compare or to rule
    the others out."""
    return os.environ.get(NATIVE) != "0"


def remembers_plans() -> bool:
    """Whether plans are kept and found again; "off" plans every model anew, to compare or to rule the cache out."""
    return os.environ.get(PLAN_CACHE, "").lower() not in ("off", "0")


def skipped_passes() -> frozenset[str]:
    """Passes over a captured graph that are left out, by name: to find the one that is to blame."""
    names = os.environ.get(SKIP_PASSES, "").split(",")
    return frozenset(name.strip() for name in names if name.strip())


def uses_step_memory() -> bool:
    """Whether steps run at planned addresses; "0" leaves every block to malloc, to compare or to rule the arena out."""
    return os.environ.get(STEP_MEMORY) != "0"


def leave_out_step_memory() -> None:
    """As if VDNN_STEP_MEMORY=0 had been said when this process began: for limits that count addresses."""
    os.environ[STEP_MEMORY] = "0"


def compiler_command() -> str:
    """The C++ compiler that builds the library behind it."""
    return os.environ.get(COMPILER) or "c++"


def delegated_cgroup() -> Path | None:
    """A control group with the memory controller in which the user may make groups of their own, if one is named."""
    configured = os.environ.get(CGROUP)
    return Path(configured) if configured else None
