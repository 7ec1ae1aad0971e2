"""How many bytes an op allocates inside itself, beyond what its outputs hold when it is done.

Enters: a function that runs one op. Leaves: its workspace in bytes. The one idea: PyTorch's CPU allocator reports
every allocation and every release to the profiler, in order, so the highest running sum less the last one is the
workspace, to the byte.

Note: [What the allocator's events see]
oneDNN's reorder buffers and scratchpads are among the events, because PyTorch registers its own allocator with that
library. Checked against the resident set (VmHWM) on convolutions of six shapes in two layouts, forward and backward,
and on matrix products, attention, normalisation, pooling, softmax, sort and dropout: the two agree to within pages,
except where an op allocates scratch that it does not touch (the weight gradient of a strided or 7×7 convolution, up
to 7 MB there). Those bytes are counted, as a device allocator would count them: the figure bounds the real peak from
above. Not seen is what libraries keep for as long as the process lives (MKL's buffers per thread, the code oneDNN
generates: some 25 MiB on two threads); it belongs to the process's own footprint. VmHWM itself is not used here: it
needs allocator settings that slow the whole process for good.

The public `torch.profiler` reads the same events, but its first use takes over a second and each use writes two lines
to stderr; the entry points in `torch_private.py` take 30 microseconds. `tests/cpu/test_measured_costs.py` compares
the two.

An accelerator's allocator counts by itself: the most that it had at once, less what it has in the end. It is asked
once the op is over, because an allocator may also be asked by the device while it works. Whoever looks at
`torch.accelerator.max_memory_allocated` finds it reset by a trial of ops, which is the first step's affair.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from typing import TypeVar

import torch

from vdnn.cost.collector import collector_paused
from vdnn.hardware.where import CPU
from vdnn.torch_private import is_profiler_enabled, start_recording_memory, stop_recording_memory

Result = TypeVar("Result")


def run_counted(run: Callable[[], Result], where: torch.device = CPU) -> tuple[Result, int | None]:
    """What it returns, and the most bytes that it took at once, its results among them. None: nobody counted, since a
    thread has one profiler, and the user's is on."""
    if where != CPU:
        with collector_paused():
            torch.accelerator.synchronize(where)
            before = torch.accelerator.memory_allocated(where)
            torch.accelerator.reset_peak_memory_stats(where)
            result = run()
            torch.accelerator.synchronize(where)
            return result, torch.accelerator.max_memory_allocated(where) - before
    if is_profiler_enabled():
        return run(), None
    with collector_paused():
        start_recording_memory()
        try:
            result = run()
        finally:
            changes = stop_recording_memory()
    return result, max(accumulate(changes, initial=0))


def workspace_nbytes(run: Callable[[], object], where: torch.device = CPU) -> int:
    """The workspace of one run. A thread has one profiler: while the user's is on, ours records on another thread."""
    if where != CPU:
        return _counted_by_allocator(run, where)
    if not is_profiler_enabled():
        return _recorded(run)
    with ThreadPoolExecutor(max_workers=1) as other_thread:
        return other_thread.submit(_recorded, run).result()


def _counted_by_allocator(run: Callable[[], object], where: torch.device) -> int:
    with torch.no_grad(), collector_paused():
        torch.accelerator.synchronize(where)
        torch.accelerator.reset_peak_memory_stats(where)
        result = run()
        torch.accelerator.synchronize(where)
        highest, last = torch.accelerator.max_memory_allocated(where), torch.accelerator.memory_allocated(where)
    del result
    return highest - last


def _recorded(run: Callable[[], object]) -> int:
    with torch.no_grad():
        return highest_over_last(allocation_changes(run))


def allocation_changes(run: Callable[[], object]) -> list[int]:
    """What this thread's allocations add and its releases take away, in order. The result of the run is released only
    after the recording ends: it is no workspace."""
    with collector_paused():  # what it frees meanwhile would pass for workspace
        start_recording_memory()
        try:
            result = run()
        finally:
            changes = stop_recording_memory()
    del result
    return changes


def highest_over_last(changes: Sequence[int]) -> int:
    """Of a running sum that starts at zero: its highest value less its last."""
    balance = list(accumulate(changes, initial=0))
    return max(balance) - balance[-1]
