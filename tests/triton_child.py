"""Triton in a process of its own: kernels run in its interpreter, or are compiled for a GPU that is not in the room.

Triton reads TRITON_INTERPRET while it is imported, and torch may import it at any time. So each use gets a fresh
process that decides before anything else happens there; nothing at the head of this file imports torch or Triton.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import numpy as np


@dataclass(frozen=True)
class First:
    """The first `count` elements of an array are the argument; the rest is there to show what is written past them."""

    array: np.ndarray
    count: int


@dataclass(frozen=True)
class Outcome:
    """What a kernel returned, and its array arguments as it left them, whole."""

    result: Any
    arrays: list[np.ndarray]


def child(initializer: Callable[..., None], *args: Any) -> ProcessPoolExecutor:
    """One fresh process, with its environment set before torch or Triton is imported in it."""
    return ProcessPoolExecutor(1, get_context("spawn"), initializer, args)


def set_environment(**variables: str) -> None:
    assert "triton" not in sys.modules, "too late: Triton has read its environment"
    os.environ.update(variables)


def interpret() -> None:
    set_environment(TRITON_INTERPRET="1")
    np.seterr(all="ignore")  # the interpreter calculates with numpy, which warns of inf * 0


def compile_only(cache_dir: str) -> None:
    set_environment(TRITON_CACHE_DIR=cache_dir, TRITON_INTERPRET="0")


def outcome(module: str, name: str, args: tuple[Any, ...], to_argument: Callable[[np.ndarray], Any]) -> Outcome:
    """Call a kernel on copies of the arrays. One array given twice stays one."""
    copies = {id(whole): whole.copy() for whole in map(whole_array, args) if whole is not None}
    function = getattr(sys.modules[module] if module in sys.modules else __import__(module, fromlist=[name]), name)
    result = function(*(argument(arg, copies, to_argument) for arg in args))
    return Outcome(result if result is None else int(result), list(copies.values()))


def whole_array(arg: Any) -> np.ndarray | None:
    whole = arg.array if isinstance(arg, First) else arg
    return whole if isinstance(whole, np.ndarray) else None


def argument(arg: Any, copies: dict[int, np.ndarray], to_argument: Callable[[np.ndarray], Any]) -> Any:
    whole = whole_array(arg)
    if whole is None:
        return arg
    given = to_argument(copies[id(whole)])
    return given[: arg.count] if isinstance(arg, First) else given


def reference_outcome(name: str, *args: Any) -> Outcome:
    return outcome("vdnn.codecs.kernels.reference", name, args, lambda array: array)


def triton_outcome(name: str, *args: Any) -> Outcome:
    """Runs in a child that interprets."""
    import torch

    torch.set_num_threads(1)
    return outcome("vdnn.codecs.kernels.triton_kernels", name, args, torch.from_numpy)


def torch_outcome(name: str, *args: Any) -> Outcome:
    import torch

    return outcome("vdnn.codecs.kernels.torch_kernels", name, args, torch.from_numpy)


class NoDevice:
    """All that Triton asks a driver before it compiles. There is nothing to launch on."""

    def __init__(self, target: Any) -> None:
        self.target = target

    def get_current_target(self) -> Any:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def compiled(backend: str, arch: int | str, warp_size: int, calls: list[tuple[Any, ...]]) -> list[tuple[str, str, int]]:
    """Runs in a child that compiles: name, assembly and size of the machine code of each kernel these calls launch."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    kernels, run = {}, JITFunction.run

    def compile_instead(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        kernel = run(self, *args, grid=grid, warmup=True, **kwargs)
        kernels[id(kernel)] = f"{self.module}.{self.__name__}", kernel

    driver.set_active(NoDevice(GPUTarget(backend, arch, warp_size)))
    JITFunction.run = compile_instead
    for name, *args in calls:
        triton_outcome(name, *args)
    text, binary = ("ptx", "cubin") if backend == "cuda" else ("amdgcn", "hsaco")
    return [(name, kernel.asm[text], len(kernel.asm[binary])) for name, kernel in kernels.values()]
