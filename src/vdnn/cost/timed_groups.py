"""Ops timed in groups: each run of an op comes after runs of others, as in a step.

Enters: calls by key, in the order of the step. Leaves: their costs, a group at a time. The one idea: an op that is run
over and over finds its inputs, its code and the branch predictor as it left them, which no op of a training step does.
So ops are taken in groups of neighbours, and a round runs each of them once: between two runs of an op lie as many
bytes as lie between it and its neighbours in the step.

Measured against the same ops inside a step, interleaved, one thread, processor time: ops repeated alone take 0.89 of it
for a ResNet-50 and a small GPT-2, 0.74 for DenseNet-121 with its many small ops; in groups of 4 they take 0.97 to 1.01
and 0.96, in groups of 16 between 0.97 and 1.05 and 1.07. Driving out the caches before every run overshoots: it drives
out the code as well.

Where other processes take the cores, rounds go on until every op had some undisturbed runs; an op that had none
all the same is "measured beside others".

An op of `LONG_OP_S` and more is timed alone: caches do not show in it, and its inputs are large.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter

import torch

from vdnn.cost.op_memory import workspace_nbytes
from vdnn.cost.stopwatch import Lap, Run, Timed, lap, lap_in_queue, num_quiet, typical_s
from vdnn.cost.table import OpCost
from vdnn.hardware.clocks import Clock, clock_of
from vdnn.hardware.where import CPU

LONG_OP_S = 0.05  # at 10 GB/s as much as half a gigabyte has passed: no cache holds it
GROUP_SIZE = 8  # see the head of this file
GROUP_S = 0.1  # one round of a group: what all its inputs take together stays in the order of a gigabyte
MIN_QUIET = 3  # runs that nobody disturbed; with fewer there are more rounds
MAX_ROUNDS = 4  # times as many as were asked for, while there are fewer
SECONDS_PER_OP = 0.5  # timed runs of one op stop here: ops of 100 ms run 5 times
SINGLE_RUN_S = 2.0  # from here on the first run counts: what it takes to warm up hardly shows


MEASURED, DISTURBED = "measured", "measured beside others"


@dataclass(slots=True)
class Prepared:
    """An op with its inputs, run at least once."""

    key: str
    run: Run
    workspace_nbytes: int
    first_s: float

    def cost(self, laps: list[Timed]) -> OpCost:
        return OpCost(typical_s(laps), self.workspace_nbytes, MEASURED if num_quiet(laps) else DISTURBED)


def timed(
    makers: Mapping[str, Callable[[], Run]], repeats: int, where: torch.device = CPU
) -> Iterator[tuple[str, OpCost]]:
    """Each op's cost, as soon as it is known. `makers` allocate inputs and return a function that runs the op there."""
    queue = None if where == CPU else clock_of(where)
    group: list[Prepared] = []
    for key, make in makers.items():
        op = _prepared(key, make, where)
        if op.first_s >= LONG_OP_S:
            yield key, _alone(op, repeats, queue)
            continue
        group.append(op)
        if len(group) == GROUP_SIZE or sum(member.first_s for member in group) >= GROUP_S:
            yield from _in_rounds(group, repeats, queue)
            group.clear()
    yield from _in_rounds(group, repeats, queue)


def _prepared(key: str, make: Callable[[], Run], where: torch.device) -> Prepared:
    with naming(key):
        run = make()
        begin = perf_counter()
        workspace = workspace_nbytes(run, where)
        first_s = perf_counter() - begin
        # The first call may also have made what the library keeps for good: the second is the one to believe. Next to
        # what an op of so long a time allocates, that is nothing.
        return Prepared(key, run, workspace if first_s >= SECONDS_PER_OP else workspace_nbytes(run, where), first_s)


def _alone(op: Prepared, repeats: int, queue: Clock | None) -> OpCost:
    if op.first_s >= SINGLE_RUN_S:
        return OpCost(op.first_s, op.workspace_nbytes, MEASURED)
    with naming(op.key):
        return op.cost(laps_of(op.run, repeats, queue))


def _in_rounds(group: list[Prepared], repeats: int, queue: Clock | None) -> Iterator[tuple[str, OpCost]]:
    laps: list[list[Timed]] = [[] for _ in group]
    for number in range(MAX_ROUNDS * repeats):
        if number >= repeats and all(num_quiet(of_op) >= min(MIN_QUIET, repeats) for of_op in laps):
            break
        for op, of_op in zip(group, laps, strict=True):
            with naming(op.key):
                of_op.append(_lap(op.run, queue))
    yield from ((op.key, op.cost(of_op)) for op, of_op in zip(group, laps, strict=True))


def _lap(run: Run, queue: Clock | None) -> Timed:
    return lap(run) if queue is None else lap_in_queue(run, queue)


def laps_of(run: Run, repeats: int, queue: Clock | None = None) -> list[Timed]:
    """So many runs, or as many as the time allows."""
    laps: list[Timed] = []
    while not laps or (len(laps) < repeats and sum(one.seconds for one in laps) < SECONDS_PER_OP):
        laps.append(_lap(run, queue))
    return laps


def laps_in_turn(run: Run, other: Run, repeats: int) -> tuple[list[Lap], list[Lap]]:
    """Of two in turns: what slows the machine down slows both."""
    ours: list[Lap] = []
    theirs: list[Lap] = []
    while not ours or (len(ours) < repeats and sum(one.seconds for one in (*ours, *theirs)) < 2 * SECONDS_PER_OP):
        ours.append(lap(run))
        theirs.append(lap(other))
    return ours, theirs


@contextmanager
def naming(key: str) -> Iterator[None]:
    """An op that fails says which one it was."""
    try:
        yield
    except Exception as error:
        error.add_note(f"while measuring what {key} costs")
        raise
