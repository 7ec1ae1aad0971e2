"""Time and workspace of every op, by running it on this machine's CPU.

Enters: one `OpCall` per step, or None for a step that costs nothing. Leaves: a `CostTable`. The one idea: networks
repeat themselves, so equal calls (same op, shapes, strides, dtypes, scalars) share a key, each key is measured once
and then remembered by the `CostCache`. Time and memory are measured in separate runs: the recording would count as
time for small ops.

Measuring leaves no trace: the random generator is put back, and no gradient graph is built. Weakness: inputs of a
call lie in the caches after the first run, so small memory-bound ops look a little faster than they are between
others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import torch

from vdnn.cost.cache import CostCache
from vdnn.cost.op_memory import workspace_nbytes
from vdnn.cost.table import CostTable, OpCost

log = logging.getLogger(__name__)

REPEATS = 9  # an odd number has a middle; more did not steady the medians on a shared 2-core machine
LONG_OP_S = 0.5  # from here on the first run counts: warming up takes milliseconds and would not show
SECONDS_PER_OP = 0.5  # timed runs of one op stop here: ops of 100 ms run 5 times
FREE = OpCost(0.0, 0, "free")


@dataclass(frozen=True, slots=True)
class OpCall:
    """`make` allocates inputs and returns a function that runs the op once on them and returns its outputs.

    Calls with the same key cost the same: it names the op, shapes, strides, dtypes and scalars.
    """

    key: str
    make: Callable[[], Callable[[], object]]


def measure(
    calls: Sequence[OpCall | None],
    cache: CostCache,
    *,
    repeats: int = REPEATS,
    progress: Callable[[int, int], None] | None = None,
) -> CostTable:
    """One cost per call. `progress(done, total)` counts what had to be measured."""
    distinct = {call.key: call for call in calls if call is not None}
    costs = cache.lookup(distinct)
    unknown = [call for key, call in distinct.items() if key not in costs]
    begin = perf_counter()
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        for done, call in enumerate(unknown, start=1):
            costs[call.key] = measure_one(call, repeats)
            cache.store(call.key, costs[call.key])
            if progress is not None:
                progress(done, len(unknown))
    log.info("measured %d of %d distinct ops in %.1f s", len(unknown), len(distinct), perf_counter() - begin)
    return CostTable(tuple(FREE if call is None else costs[call.key] for call in calls))


def measure_one(call: OpCall, repeats: int = REPEATS) -> OpCost:
    """Warm up, record memory, time. An op that fails says which one it was."""
    try:
        run = call.make()
        begin = perf_counter()
        workspace = workspace_nbytes(run)
        first_s = perf_counter() - begin
        if first_s >= LONG_OP_S:
            return OpCost(first_s, workspace, "measured")
        # The first call may also have made what the library keeps for good: the second is the one to believe.
        return OpCost(median_s(run, repeats), workspace_nbytes(run), "measured")
    except Exception as error:
        error.add_note(f"while measuring what {call.key} costs")
        raise


def median_s(run: Callable[[], object], repeats: int) -> float:
    """Outputs are freed inside the measured time, because every op's outputs are freed some time in a step."""
    samples: list[float] = []
    while not samples or (len(samples) < repeats and sum(samples) < SECONDS_PER_OP):
        begin = perf_counter()
        run()
        samples.append(perf_counter() - begin)
    return median(samples)
