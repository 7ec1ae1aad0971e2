"""Where the time of a step with encoded maps goes: each kind of instruction under a plan, beside keep-all.

The runtime's watched steps note when every instruction begins and ends. Plans take turns; of each instruction the
shortest time over all rounds counts, so that what other processes steal is left out as far as it can be; then
instructions of a kind are added up. Watching costs each instruction some microseconds, under every plan alike.

Backward ops that read an encoding as it is appear under the name of the aten op they replace, so that a line compares
the two. The line before the last adds up only what codecs can change: encoding, decoding and those ops. All other ops
are the same under both plans; where they differ, other processes were too busy for the shortest time to be a quiet one.

    python benchmarks/gist_costs.py                      # VGG-16, some minutes
    python benchmarks/gist_costs.py googlenet --batch 8 --strategies gist-fp8 --rounds 9
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from provenance import Record, provenance

import vdnn
from vdnn import models
from vdnn.api import session_of
from vdnn.ir import Graph
from vdnn.models.spec import Workload
from vdnn.plan.judge.schedule import Instruction, Kind, schedule
from vdnn.plan.model.actions import Encode
from vdnn.plan.model.timeline import COMPUTE
from vdnn.plan.plan import Plan
from vdnn.units import format_seconds

BASE = "keep-all"
SHOWN_SHARE = 0.002  # of the step; what is less goes into one line


Times = dict[str, float]
"""Seconds by kind of instruction."""


@dataclass
class Watched:
    """A plan under watch, and the seconds of its instructions, one array per round."""

    name: str
    step: Callable[..., Any]
    rounds: list[np.ndarray] = field(default_factory=list)

    @property
    def plan(self) -> Plan:
        (executor,) = session_of(self.step).executors
        return executor.plan

    def run(self, load: Workload) -> None:
        session = session_of(self.step)
        session.watch_next()
        load.model.zero_grad(set_to_none=True)
        self.step(*load.args).backward()
        (executor,) = session.executors
        assert executor.measured.timeline is not None, "the step was to be watched"
        lane = executor.measured.timeline.lanes[COMPUTE]
        self.rounds.append(lane.end_s - lane.begin_s)

    def seconds_by_kind(self) -> Times:
        found: Times = defaultdict(float)
        shortest = np.min(self.rounds, axis=0)
        for instruction, seconds in zip(schedule(self.plan), shortest, strict=True):
            found[kind_of(self.plan, instruction)] += float(seconds)
        return found

    def kinds_with_encodings(self) -> set[str]:
        """Kinds of instructions that write or read an encoding."""
        graph = self.plan.problem.graph
        direct = {d.storage for d in self.plan.decisions if isinstance(d.action, Encode) and d.action.direct}
        return {
            kind_of(self.plan, instruction)
            for instruction in schedule(self.plan)
            if instruction.kind is not Kind.RUN or is_backward_reader(graph, instruction.op, direct)
        }


def is_backward_reader(graph: Graph, op: int, storages: set[int]) -> bool:
    reads = graph.ops[op].reads
    return op >= graph.num_forward and any(graph.values[read.value].storage in storages for read in reads)


def kind_of(plan: Plan, instruction: Instruction) -> str:
    """The op's aten name, or what is done to a map and with which codec."""
    if instruction.kind is Kind.RUN:
        target = plan.problem.graph.ops[instruction.op].target
        return target.split(".")[1] if target.count(".") > 1 else target
    action = plan.decisions[instruction.decision].action
    return f"{instruction.kind} {action.codec}" if isinstance(action, Encode) else str(instruction.kind)


def watch(load: Workload, strategies: Sequence[str], rounds: int) -> list[Watched]:
    plans = [Watched(name, vdnn.virtualize(load.step, sample=load.args, strategy=name)) for name in strategies]
    for plan in plans:
        plan.step(*load.args).backward()  # memory pools fill
    for _ in range(rounds):
        for plan in plans:
            plan.run(load)
    return plans


def rows(plans: Sequence[Watched]) -> Iterator[list[str]]:
    """Kinds in the order of what they add to keep-all's time under the last plan, then sums."""
    times = [plan.seconds_by_kind() for plan in plans]
    whole = sum(times[0].values())
    kinds = sorted({kind for time in times for kind in time}, key=lambda k: times[0].get(k, 0) - times[-1].get(k, 0))
    shown = [kind for kind in kinds if max(time.get(kind, 0) for time in times) >= SHOWN_SHARE * whole]
    for kind in shown:
        yield row(kind, times, [kind], whole)
    yield row("all others", times, [kind for kind in kinds if kind not in shown], whole)
    yield row("**what codecs change**", times, sorted(plans[-1].kinds_with_encodings()), whole)
    yield row("**all**", times, kinds, whole)


def row(name: str, times: Sequence[Times], kinds: Sequence[str], whole: float) -> list[str]:
    sums = [sum(time.get(kind, 0.0) for kind in kinds) for time in times]
    return [name, *map(format_seconds, sums), f"{100 * (sums[-1] - sums[0]) / whole:+.1f} %"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="vgg16")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--strategies", nargs="*", default=["gist"])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--save", type=Path, default=None, help="a file for what is printed")
    arguments = parser.parse_args()
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    load = models.load(arguments.model, arguments.batch)
    record = Record()
    record.say(*provenance(), f"- {arguments.model}, batch {arguments.batch}, the least of {arguments.rounds} rounds.")
    plans = watch(load, [BASE, *arguments.strategies], arguments.rounds)
    record.table(("", *(plan.name for plan in plans), f"{plans[-1].name}, of keep-all's step"), rows(plans))
    if arguments.save is not None:
        record.save(arguments.save)


if __name__ == "__main__":
    main()
