"""The peak of the whole process as the kernel saw it: the figure behind every headline number.

Enters: a function. Leaves: a `ProcessPeak`. The one idea: Linux keeps the highest resident size of a process (VmHWM)
and lets the process reset it (`5` to /proc/self/clear_refs), so nothing has to be sampled and nothing can be missed.
Freed memory must really return to the kernel for that: glibc is told to map every block from 64 KiB up on its own and
to keep no free memory at the top of its heap.

Those settings hold for the rest of the process and cost time (every large tensor is fresh pages), so measure time
elsewhere, and memory in a child: `child_peak`, or `in_child` with a function of yours that calls `peak_of` and
returns more than the peak.

Note: [The settings come first]
Blocks that were freed before the settings are holes in glibc's heap, later tensors go into these holes, and a hole
never returns to the kernel when it is freed again. A training step whose tensors took 70 MB then showed a peak of 127
to 146 MB. So a child has the settings from its first line on.

Note: [Locks without a name]
A process that was spawned spawns too unless told, and a lock that may go to a spawned process has a name, which the
resource tracker of the first process minds: a library that makes one in a child that is then killed (tqdm does) leaves
a complaint about leaked semaphores behind. In a child that forks, a lock has lost its name when it is there.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_all_start_methods, get_context, set_start_method
from pathlib import Path
from typing import ParamSpec, TypeVar

from vdnn.errors import Unsupported
from vdnn.units import KiB

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"  # proc(5), since Linux 4.0
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_MMAP_THRESHOLD_NBYTES = (
    64 * KiB
)  # small enough that every feature map counts, large enough that Python's own objects do not

_LARGE_STEP_OPS = 250  # some 10 MiB of Python objects; a collection takes a few tenths of a second

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ProcessPeak:
    """Resident bytes of the process before a call, and at most during it."""

    before_nbytes: int
    peak_nbytes: int

    @property
    def delta_nbytes(self) -> int:
        """What the call added at its peak."""
        return self.peak_nbytes - self.before_nbytes


@dataclass(frozen=True, slots=True)
class Resident:
    """Bytes of the process that are in memory now, and at most so far."""

    now_nbytes: int
    peak_nbytes: int


def resident() -> Resident | None:
    """Of this process; None on systems that do not tell."""
    try:
        return Resident(status_nbytes("VmRSS"), status_nbytes("VmHWM"))
    except (OSError, Unsupported):
        return None


def peak_of(fn: Callable[[], object]) -> ProcessPeak:
    """Run `fn` and say how far the process grew. Changes the allocator's settings for the rest of the process.

    Exact in a process that had these settings before it allocated anything large. Note: [The settings come first]
    """
    return_freed_memory()
    gc.collect()
    return_free_heap()
    reset_peak()
    before = status_nbytes("VmRSS")
    fn()
    return ProcessPeak(before, max(before, status_nbytes("VmHWM")))


def in_child(fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What `fn` returns in a fresh Python process, ready for `peak_of`. Note: [The settings come first]

    `fn` and its arguments travel by pickle: a function of a module, not a lambda, and a script needs its
    `if __name__ == "__main__":`.
    """
    with ProcessPoolExecutor(1, get_context("spawn"), _begin_child, (True,)) as pool:
        return _result(pool, fn, *args, **kwargs)


def in_default_child(fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """As `in_child`, with malloc as a user finds it: for figures of what a user's process takes."""
    with ProcessPoolExecutor(1, get_context("spawn"), _begin_child, (False,)) as pool:
        return _result(pool, fn, *args, **kwargs)


def _begin_child(returns_freed: bool) -> None:
    """Note: [Locks without a name]"""
    if "fork" in get_all_start_methods():
        set_start_method("fork", force=True)
    if returns_freed:
        return_freed_memory_if_possible()


def _result(pool: ProcessPoolExecutor, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    try:
        return pool.submit(fn, *args, **kwargs).result()
    except BrokenProcessPool as error:
        error.add_note("The child was killed. If it ran out of memory, the kernel's log says so (dmesg).")
        raise


def child_peak(fn: Callable[..., object], *args: object, **kwargs: object) -> ProcessPeak:
    """The peak of `fn(*args, **kwargs)`, measured in a fresh process."""
    return in_child(_peak_of_call, fn, args, kwargs)


def return_freed_memory() -> None:
    """Make glibc give every freed block of 64 KiB and up back to the kernel at once."""
    settings = ((_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_NBYTES), (_M_TRIM_THRESHOLD, 0))
    if not all(_libc().mallopt(option, value) for option, value in settings):
        raise Unsupported("cannot measure the process's peak: the C library refused the mallopt settings it needs.")


def give_back_garbage(num_ops: int) -> None:
    """Collect what tracing and planning a step of so many ops left behind, and have malloc return what is free: it is
    tens of MiB for large steps, and the step's tensors come on top of it. Small steps leave less than looking at all
    objects is worth."""
    if num_ops < _LARGE_STEP_OPS:
        return
    gc.collect()
    return_free_heap()


def return_free_heap() -> None:
    """Have malloc return what is free, now. Where it is not glibc's, it keeps what it keeps."""
    with suppress(Unsupported):
        _libc().malloc_trim(0)


def return_freed_memory_if_possible() -> bool:
    """Whether it is. Where it is not, `peak_of` is the one to say so."""
    try:
        return_freed_memory()
    except Unsupported:
        return False
    return True


def _peak_of_call(fn: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]) -> ProcessPeak:
    return peak_of(lambda: fn(*args, **kwargs))


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt") or not hasattr(libc, "malloc_trim"):
        raise Unsupported(
            "cannot measure the process's peak: this C library has no mallopt and malloc_trim, which only glibc has."
            " Measure on Linux with glibc, or use torch's own allocation counters."
        )
    return libc


def reset_peak() -> None:
    """The highest resident size counts from now on."""
    try:
        _CLEAR_REFS.write_text(_RESET_PEAK)
    except OSError as error:
        raise Unsupported(
            f"cannot measure the process's peak: {_CLEAR_REFS} cannot be written ({error.strerror})."
            " It needs Linux 4.0 with /proc mounted writable, which some containers do not give."
        ) from error


def status_nbytes(field: str) -> int:
    """A line of what the kernel tells of this process."""
    for line in _STATUS.read_text().splitlines():
        name, _, amount = line.partition(":")
        if name == field:
            return int(amount.removesuffix("kB")) * KiB
    raise Unsupported(f"cannot measure the process's peak: {_STATUS} has no line {field}.")
