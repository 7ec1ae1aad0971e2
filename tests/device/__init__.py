"""A device for tests: `load()` makes "vdev" a device of this process, with two of them, as an accelerator would be.

Enters: `csrc/`, a PrivateUse1 backend in C++ over RAM. Leaves: `torch.vdev`, and `controls`, which turn what a test
wants to see: a hard limit, slow links, late kernels, freed memory that is full of NaN. Its kernels are the CPU's, so
numbers are equal bit for bit; its memory, streams, events, pinned memory, generators and autocast are its own.

A process that has loaded it cannot unload it, and `torch.accelerator` names it from then on. So a test run loads it at
its start (`pytest --device vdev`) or never.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from torch.utils.cpp_extension import include_paths, library_paths

from device import module

NAME = "vdev"
SOURCES = Path(__file__).parent / "csrc"
FLAGS = ("-O1", "-std=c++20", "-shared", "-fPIC", "-fvisibility=hidden")
CACHE_DIR = "VDEV_CACHE_DIR"
BUILD_S = 600.0


class NoDevice(RuntimeError):
    """The device cannot be built here; the message says why."""


@functools.cache
def load() -> None:
    """Makes "vdev" a device of this process. The first call on a machine builds it, in half a minute."""
    torch.ops.load_library(str(built()))
    torch.utils.rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, module)
    torch.utils.generate_methods_for_privateuse1_backend()
    torch.ops.vdev.install()
    atexit.register(torch.ops.vdev.synchronize_all)


def is_loaded() -> bool:
    return load.cache_info().currsize > 0


def built() -> Path:
    """Where the library lies, under a name that changes with its sources, torch and the compiler's flags."""
    if sys.platform != "linux":
        raise NoDevice(f"the device for tests is written for Linux, and this is {sys.platform}")
    compiler = shutil.which(os.environ.get("CXX", "c++")) or shutil.which("g++")
    if compiler is None:
        raise NoDevice("there is no C++ compiler (CXX names one)")
    command = _command(compiler)
    sources = [source.read_text() for source in sorted(SOURCES.iterdir())]
    key = hashlib.sha256("\0".join((*command, torch.__version__, *sources)).encode()).hexdigest()[:16]
    target = _cache_dir() / f"vdev_{key}.so"
    if not target.exists():
        _build(command, target)
    return target


def _cache_dir() -> Path:
    """Not `VDNN_CACHE_DIR`: a test run begins with an empty one, and a build takes half a minute."""
    asked = os.environ.get(CACHE_DIR)
    return Path(asked) if asked else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "vdnn-tests"


def _command(compiler: str) -> tuple[str, ...]:
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    headers = [f"-isystem{folder}" for folder in include_paths()]
    libraries = [f"-L{folder}" for folder in library_paths()]
    return (compiler, *FLAGS, abi, *headers, str(SOURCES / "vdev.cpp"), *libraries, "-ltorch_cpu", "-ltorch", "-lc10")


def _build(command: tuple[str, ...], target: Path) -> None:
    """Beside its place and then renamed: workers of one run may all build it."""
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="vdev_") as folder:
        made = Path(folder) / target.name
        done = subprocess.run((*command, "-o", str(made)), capture_output=True, text=True, timeout=BUILD_S)
        if done.returncode:
            raise NoDevice(f"{command[0]} does not compile it: {done.stderr[:2000]}")
        made.replace(target)
