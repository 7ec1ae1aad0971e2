"""What holding feature maps encoded saves, and what it costs: Gist's five networks (Jain et al., ISCA 2018).

Two parts. The planner's: peaks on the paper's machine, a Titan X, with its minibatch of 64; nothing is allocated. The
figure is the paper's memory footprint ratio, keep-all's peak over the plan's, beside what was published. Because the
weights of fully connected layers fill much of AlexNet and OverFeat and no encoding touches them, a second table leaves
parameters, their gradients and buffers out.

The measured one: steps on this machine. All plans of a network share its weights and inputs and take turns in one
process, each round starting with another, so that whatever else the machine does falls on all; the figure is the ratio
of medians, and every trial is in the record. Beside the time by the clock stands the processor time of all threads,
which other processes disturb less. Peaks are exact tensor bytes of a watched step.

Two plans are `gist` with one codec alone. `sign-masks` keeps ReLU's bits and nothing else: its backward reads bits
instead of values, which should cost nothing. `window-indices` shortens the places of pools' maxima, which PyTorch keeps
as 8 bytes each and the paper's baseline did not keep at all: what it saves is the framework's own waste.

    python benchmarks/gist.py                                        # about a quarter of an hour on two cores
    python benchmarks/gist.py --planner-only
    python benchmarks/gist.py --networks vgg16 --batch 4 --rounds 5 --save gist.md
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import Any

import torch
from provenance import Record, provenance

import vdnn
from vdnn import models
from vdnn.api import session_of
from vdnn.models.spec import Workload
from vdnn.papers.gist_tables import (
    BASE,
    GISTS,
    NETWORKS,
    PAPER_BATCH,
    PAPER_DEVICE,
    PUBLISHED_REDUCTION,
    Footprint,
    GistNetwork,
    footprint,
    ratios,
    with_only,
)
from vdnn.plan.judge.validate import check
from vdnn.plan.strategy_table import STRATEGIES, solve
from vdnn.units import format_nbytes, format_seconds

SIGN_MASKS, WINDOW_INDICES = "sign-masks", "window-indices"
PLANNED = (SIGN_MASKS, WINDOW_INDICES, *GISTS)
BATCHES = {"alexnet": 32, "nin": 32, "overfeat": 16, "vgg16": 8, "googlenet": 16, "inception-v3": 4}
"""What a step is measured with here."""

WARM_UP = 2  # the first step is watched; in the second, memory pools fill


# The planner's part


def planned(network: GistNetwork) -> dict[str, Footprint]:
    """By strategy. The graph is captured once, on meta tensors."""
    load = models.load(network.name, PAPER_BATCH, device="meta")
    problem = vdnn.plan(load.step, load.args, hardware=PAPER_DEVICE).problem
    return {name: footprint(check(solve(problem, name)).timeline) for name in (BASE, *PLANNED)}


def planner_part(networks: Sequence[GistNetwork], record: Record) -> None:
    record.say(f"## Planned for a Titan X, minibatch {PAPER_BATCH}: keep-all's peak over the plan's", "")
    found = {network: planned(network) for network in networks}
    for what, title in (
        ("peak_nbytes", "Everything counted"),
        ("maps_nbytes", "Without parameters, their gradients and buffers"),
    ):
        record.say(f"### {title}")
        record.table(("network", BASE, *PLANNED, "paper's smallest format"), planner_rows(found, what))


def planner_rows(found: Mapping[GistNetwork, Mapping[str, Footprint]], what: str) -> Iterator[list[str]]:
    columns: dict[str, list[float]] = {name: [] for name in (*PLANNED, "chosen")}
    for network, footprints in found.items():
        row = ratios(network, footprints, what, PLANNED)
        chosen = f"{row['chosen']:.2f} ({network.format}{', a guess' if network.is_guess else ''})"
        base = format_nbytes(getattr(footprints[BASE], what))
        yield [network.title, base, *(f"{row[name]:.2f}" for name in PLANNED), chosen]
        for name in columns if network.is_papers else ():
            columns[name].append(row[name])
    if all(columns.values()):
        yield [f"average of the paper's {len(columns['gist'])}", "", *(f"{fmean(c):.2f}" for c in columns.values())]
    if what == "peak_nbytes":
        yield ["published average", "", *(PUBLISHED_REDUCTION.get(name, "") for name in columns)]


# The measured part


@dataclass
class Contender:
    """One plan of a network under measurement."""

    name: str
    step: Callable[..., Any]
    seconds: list[float] = field(default_factory=list)
    processor_s: list[float] = field(default_factory=list)

    def run(self, load: Workload) -> None:
        """One timed step."""
        load.model.zero_grad(set_to_none=True)
        begin, processor_begin = time.perf_counter(), time.process_time()
        self.step(*load.args).backward()
        self.seconds.append(time.perf_counter() - begin)
        self.processor_s.append(time.process_time() - processor_begin)

    def forget(self) -> None:
        self.seconds.clear()
        self.processor_s.clear()

    @property
    def footprint(self) -> Footprint:
        (executor,) = session_of(self.step).executors
        assert executor.measured.timeline is not None, "the first step was to be watched"
        return footprint(executor.measured.timeline)

    @property
    def num_too_dense(self) -> int:
        """How often data did not fit the room its encoding was given, over all steps."""
        (executor,) = session_of(self.step).executors
        return executor.encodings.found.num_too_dense


def measured(network: GistNetwork, batch: int, strategies: Sequence[str], rounds: int) -> list[Contender]:
    torch.manual_seed(0)
    load = models.load(network.name, batch)
    entries = [Contender(name, vdnn.virtualize(load.step, sample=load.args, strategy=name)) for name in strategies]
    for entry in entries:
        for _ in range(WARM_UP):
            entry.run(load)
        entry.forget()
    for number in range(rounds):
        for position in range(len(entries)):
            entries[(number + position) % len(entries)].run(load)
    return entries


def over(entry: Contender, base: Contender) -> float:
    return median(entry.seconds) / median(base.seconds)


def processor_over(entry: Contender, base: Contender) -> float:
    return median(entry.processor_s) / median(base.processor_s)


def spread(entry: Contender, base: Contender) -> str:
    """The middle half of the ratios within a round."""
    within = sorted(ours / its for ours, its in zip(entry.seconds, base.seconds, strict=True))
    if len(within) < 2:
        return ""
    low, _, high = quantiles(within, n=4, method="inclusive")
    return f"{low:.3f} – {high:.3f}"


HEAD = ("network", "batch", "plan", "peak", "keep-all / it", "without weights", "step", "over keep-all")
MORE = ("middle half of rounds", "processor time over keep-all", "codes too small")


def measured_part(networks: Sequence[GistNetwork], arguments: argparse.Namespace, record: Record) -> None:
    record.say(f"## Measured here: medians of {arguments.rounds} interleaved steps")
    sums: dict[str, list[tuple[float, float]]] = {}
    trials: list[str] = []
    record.table((*HEAD, *MORE), measured_rows(networks, arguments, sums, trials))
    for name, found in sums.items():
        clock, processor = (fmean(side) for side in zip(*found, strict=True))
        record.say(
            f"- {name}, average over {len(found)}: {clock:.3f} of keep-all's time, {processor:.3f} of processors'"
        )
    record.say("", "### Every trial, in seconds, in the order of the rounds", "", "```text", *trials, "```")


def measured_rows(
    networks: Sequence[GistNetwork],
    arguments: argparse.Namespace,
    sums: dict[str, list[tuple[float, float]]],
    trials: list[str],
) -> Iterator[list[str]]:
    """Rows as they are measured; what is said of all of them goes into `sums` and `trials`."""
    for network in networks:
        batch = arguments.batch or BATCHES[network.name]
        entries = measured(network, batch, [BASE, *arguments.strategies], arguments.rounds)
        base = entries[0]
        for entry in entries:
            yield [network.title, str(batch), *cells(entry, base)]
            trials.append(f"{network.name:13} {entry.name:11}" + "".join(f" {s:7.3f}" for s in entry.seconds))
            if entry is not base:
                sums.setdefault(entry.name, []).append((over(entry, base), processor_over(entry, base)))


def cells(entry: Contender, base: Contender) -> list[str]:
    held, baseline = entry.footprint, base.footprint
    return [
        entry.name,
        format_nbytes(held.peak_nbytes),
        f"{baseline.peak_nbytes / held.peak_nbytes:.2f}",
        f"{baseline.maps_nbytes / held.maps_nbytes:.2f}",
        format_seconds(median(entry.seconds)),
        f"{over(entry, base):.3f}",
        spread(entry, base),
        f"{processor_over(entry, base):.3f}",
        str(entry.num_too_dense),
    ]


def main() -> None:
    STRATEGIES[SIGN_MASKS] = with_only("sign-mask", SIGN_MASKS)
    STRATEGIES[WINDOW_INDICES] = with_only("window-index", WINDOW_INDICES)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [network.name for network in NETWORKS]
    parser.add_argument("--networks", nargs="*", choices=names, default=None)
    parser.add_argument("--strategies", nargs="*", choices=PLANNED, default=[SIGN_MASKS, *GISTS])
    parser.add_argument("--batch", type=int, default=None, help="of measured steps; the planner's is the paper's")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=None, help="of torch; one is steadier beside other work")
    parser.add_argument("--planner-only", action="store_true")
    parser.add_argument("--measured-only", action="store_true")
    parser.add_argument("--save", type=Path, default=None, help="a file for what is printed")
    arguments = parser.parse_args()
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    record = Record()
    record.say(*provenance(), "")
    if not arguments.measured_only:
        planner_part([n for n in NETWORKS if n.name in (arguments.networks or names)], record)
    if not arguments.planner_only:
        ours = arguments.networks or [network.name for network in NETWORKS if network.is_papers]
        measured_part([n for n in NETWORKS if n.name in ours], arguments, record)
    if arguments.save is not None:
        record.save(arguments.save)


if __name__ == "__main__":
    main()
