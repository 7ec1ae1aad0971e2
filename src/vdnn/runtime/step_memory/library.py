"""The C++ library that wraps PyTorch's CPU allocator: built against the installed torch on first use, then found.

Enters: nothing. Leaves: the loaded library, or the reason why there is none: no compiler, no headers, a build that
failed, a system that is not Linux. The build takes a few seconds and lies in the cache folder, under a name that
changes with the source, torch and the compiler's flags. It runs beside the first capture, which is when nobody needs
the library yet.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.utils.cpp_extension import include_paths, library_paths

from vdnn.environment import cache_dir, compiler_command, uses_step_memory
from vdnn.plan.addresses.layout import SMALLEST_NBYTES
from vdnn.runtime.step_memory.allocator import NO_SLOTS, StepAllocator
from vdnn.torch_private import torch_version, without_torch_dispatch

ABI = 3  # kAbi in csrc/step_allocator.cpp
SOURCE = Path(__file__).parent / "csrc" / "step_allocator.cpp"
FLAGS = ("-O2", "-std=c++20", "-shared", "-fPIC", "-fvisibility=hidden")
BUILD_S = 120.0
"""A build takes a few seconds; a compiler that takes so long waits for something."""

NUMBER, NUMBERS, RESULT, NAME = ctypes.c_int64, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p
SIGNATURES = {
    "install": (RESULT, NUMBER),
    "install_on": (RESULT, NAME),
    "leave": (None, NAME),
    "open": (NUMBER,),
    "open_on": (NUMBER, NAME),
    "close": (None, NUMBER),
    "begin_half": (None, NUMBER, NUMBERS, NUMBER, NUMBERS, NUMBER),
    "guide": (None, NUMBERS, NUMBER),
    "at": (None, NUMBER),
    "aside": (None, NUMBER),
    "wants_its_place": (RESULT, NUMBER, NUMBER),
    "exchange": (None, NUMBER, NUMBER),
    "begin_repeated": (None, NUMBER),
    "end_half": (None, NUMBER, NUMBERS, NUMBER),
    "begin_between": (None, NUMBER, NUMBERS, NUMBER, NUMBERS, NUMBER),
    "end_between": (None, NUMBER),
    "begin_iteration": (None, NUMBER),
    "log_length": (NUMBER, NUMBER),
    "read_log": (None, NUMBER, NUMBERS, NUMBER),
    "reserve": (RESULT, NUMBER, NUMBER),
    "purge": (None, NUMBER),
    "statistics": (None, NUMBER, NUMBERS),
}
"""Result, then arguments, of each `vdnn_step_` function."""

log = logging.getLogger("vdnn")


@dataclass(frozen=True, slots=True)
class StepLibrary:
    """`functions` by name; None where there is no library, and `missing` says why."""

    functions: ctypes.PyDLL | None
    missing: str = ""


@functools.cache
def begin_step_library() -> Future[Path]:
    """Where the library lies, once it does. Looking for it and building it do not keep the caller waiting."""
    with_one_thread = ThreadPoolExecutor(1, thread_name_prefix="vdnn-build")
    where = with_one_thread.submit(_built)
    with_one_thread.shutdown(wait=False)
    return where


os.register_at_fork(after_in_child=begin_step_library.cache_clear)  # a thread does not go along


@functools.cache
def step_library() -> StepLibrary:
    """The library of this process: found or built by the first call, and set as PyTorch's CPU allocator."""
    try:
        library = _loaded(begin_step_library().result())
    except ImportError as reason:
        log.info("steps run without planned addresses: %s", reason)
        return StepLibrary(None, str(reason))
    return StepLibrary(library)


@functools.cache
def device_library(kind: str) -> StepLibrary:
    """The library, set as PyTorch's allocator of this kind of accelerator."""
    library = step_library()
    if library.functions is None:
        return library
    if not library.functions.vdnn_step_install_on(kind.encode()):
        return StepLibrary(None, f"the allocator of {kind} cannot be wrapped")
    if not _is_asked(library.functions, kind):
        library.functions.vdnn_step_leave(kind.encode())
        return StepLibrary(None, f"tensors on {kind} come from an allocator that cannot be wrapped")
    return library


def _is_asked(functions: ctypes.PyDLL, kind: str) -> bool:
    """Whether a tensor that is made inside of a half is heard of. Backends may ask an allocator of their own."""
    where = torch.device(kind, torch.accelerator.current_device_index())
    allocator = StepAllocator(functions, str(where))
    allocator.begin_half(NO_SLOTS)
    with without_torch_dispatch():
        made = torch.empty(1, device=where)
    allocator.end_half([])
    del made
    return len(allocator.log()) > 0


def _built() -> Path:
    """Where the library lies. An ImportError says why it cannot be had."""
    if not uses_step_memory():
        raise ImportError("VDNN_STEP_MEMORY=0 leaves it out")
    if sys.platform != "linux":
        raise ImportError(f"it moves pages as Linux does, and this is {sys.platform}")
    compiler = shutil.which(compiler_command())
    if compiler is None:
        raise ImportError(f"there is no C++ compiler ({compiler_command()!r} was not found; CXX names another)")
    command, sources = _command(compiler), [path.read_text() for path in sorted(SOURCE.parent.iterdir())]
    key = hashlib.sha256("\0".join((*command, torch_version(), *sources)).encode()).hexdigest()[:16]
    target = cache_dir() / f"step_memory_{key}.so"
    if not _is_ours(target):
        _build(command, target)
    return target


def _command(compiler: str) -> tuple[str, ...]:
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    headers = [f"-isystem{folder}" for folder in include_paths()]
    libraries = [f"-L{folder}" for folder in library_paths()]
    return (compiler, *FLAGS, abi, *headers, str(SOURCE), *libraries, "-lc10")


def _is_ours(path: Path) -> bool:
    """Whether the file is there, and nobody else could have written it: it is about to be run."""
    try:
        status = path.stat()
    except OSError:
        return False
    return status.st_uid == os.getuid() and not status.st_mode & 0o022


def _build(command: tuple[str, ...], target: Path) -> None:
    """Beside its place and then renamed: another process that builds it now does no harm."""
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix="step_memory_") as folder:
            made = Path(folder) / target.name
            done = subprocess.run((*command, "-o", str(made)), capture_output=True, text=True, timeout=BUILD_S)
            if done.returncode:
                raise ImportError(f"{command[0]} does not compile it: {_first_error(done.stderr)}")
            made.chmod(0o700)
            made.replace(target)
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise ImportError(f"it cannot be built: {problem}") from problem


def _first_error(printed: str) -> str:
    lines = [line for line in printed.splitlines() if "error" in line] or printed.splitlines() or ["no message"]
    return lines[0][:300]


def _loaded(path: Path) -> ctypes.PyDLL:
    try:
        library = ctypes.PyDLL(
            str(path)
        )  # its calls take microseconds: giving the interpreter's lock away takes longer
        found = library.vdnn_step_abi()
    except (OSError, AttributeError) as problem:
        raise ImportError(f"{path} does not load: {problem}") from problem
    if found != ABI:
        raise ImportError(f"{path} is of another version ({found}, not {ABI}): remove it")
    for name, (result, *arguments) in SIGNATURES.items():
        function = getattr(library, f"vdnn_step_{name}")
        function.restype, function.argtypes = result, arguments
    if not library.vdnn_step_install(SMALLEST_NBYTES):
        raise ImportError("another library has set PyTorch's CPU allocator for good")
    return library
