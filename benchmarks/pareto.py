"""Measured peak against measured step time: vdnn beside everything else that trains the same step in less memory.

For each of seven networks, in one process: plain eager PyTorch, `torch.utils.checkpoint` in its ways, gradient
accumulation, `torch.compile` swept over its activation memory budget with two backends, and vdnn at shares of
keep-all's peak and at each eager contender's own peak: at no more bytes, is it at least as fast?
`pareto_contenders.py` has them all.

Peaks are the allocator's own, workspaces included, by one measure for everybody (`step_memory.py`), on steps of their
own. Times are of other steps, in rounds that run one step of everybody in an order that changes; figures are medians,
and every trial is in the record. Compiling and planning is not part of a step; it has a column of its own. Each
contender's gradients are compared with eager's. A contender that fails is a row with its error.

    python benchmarks/pareto.py                                  # all of it
    python benchmarks/pareto.py --networks resnet50 vit --rounds 9 --save benchmarks/results/pareto.md
    python benchmarks/pareto.py --networks unet --contenders eager checkpoint "vdnn exact" --small --rounds 1
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from pareto_contenders import (
    COMPILED_FAMILIES,
    EAGER,
    EAGER_FAMILIES,
    FAMILIES,
    OUR_FAMILIES,
    STRATEGY,
    Lineup,
    ours,
    within,
)
from pareto_measure import Entry, compare
from pareto_plot import picture
from pareto_verdict import Point, middle_half, sufficient, verdicts
from provenance import Record, provenance

from vdnn.models.gpt2 import gpt2
from vdnn.models.registry import MODELS
from vdnn.models.spec import ModelSpec, Workload
from vdnn.models.vit import VisionTransformer
from vdnn.units import format_nbytes, format_seconds


@dataclass(frozen=True)
class Setting:
    """Sizes at which a plain step takes between a third of a second and two seconds on two cores; VGG-16 takes three,
    because with fewer images its parameters and their gradients are nearly all of its memory."""

    name: str
    title: str
    spec: ModelSpec
    batch: int
    image_size: int | None = None

    def load(self, *, small: bool) -> Workload:
        torch.manual_seed(0)
        spec = self.spec.small() if small else self.spec
        if self.image_size is not None and not small:
            spec = spec.at_image_size(self.image_size)
        return spec.workload(self.batch)

    def heading(self, *, small: bool) -> str:
        size = "" if self.image_size is None else f", {self.image_size}×{self.image_size}"
        return f"{self.title}, batch {self.batch}{', toy widths' if small else size}"


VIT_SMALL = partial(VisionTransformer, width=384, heads=6)  # ViT-S/16 of Touvron et al. 2021 (DeiT-S): 22 M parameters

SETTINGS = (
    Setting("vgg16", "VGG-16", MODELS["vgg16"], 16, 128),
    Setting("resnet50", "ResNet-50", MODELS["resnet50"], 16, 128),
    Setting("googlenet", "GoogLeNet", MODELS["googlenet"], 16, 128),
    Setting("densenet121", "DenseNet-121", MODELS["densenet121"], 8, 128),
    Setting("unet", "U-Net", MODELS["unet"], 4, 188),
    Setting("vit", "ViT-S/16", replace(MODELS["vit"], build=VIT_SMALL), 4),
    Setting("gpt2", "GPT-2 shaped, 256×8, 256 tokens", gpt2(width=256, depth=8, length=256), 4),
)
CAPTION = "Medians of {rounds} rounds, strokes: middle half of them; pale: not the same computation; thin lines: eager"
QUICK = Lineup(activation_budgets=(1.0, 0.3), shares=(75, 50, 35, 25))


HEAD = ("", "measured peak", "/ eager", "step time", "/ eager", "fastest – slowest", "gradients", "ready in")


def rows(entries: Sequence[Entry]) -> Iterator[Sequence[str]]:
    base = next((entry.point for entry in entries if entry.contender.family == EAGER), None)
    for entry in entries:
        if entry.error:
            yield [entry.name, f"failed: {entry.error.replace('|', '¦')}", *[""] * 6]
        elif entry.twin is not None:
            yield [entry.name, f"the same plan as {entry.twin.name}", *[""] * 5, format_seconds(entry.ready_s)]
        else:
            yield cells(entry, base)


def cells(entry: Entry, base: Point | None) -> list[str]:
    point = entry.point
    assert point is not None, f"{entry.name} neither failed nor was measured"
    note = f"; {entry.contender.note}" if entry.contender.note else ""
    return [
        entry.name,
        nbytes_of(point),
        "" if base is None else f"{point.total_nbytes / base.total_nbytes:.3f}",
        format_seconds(point.time_s),
        "" if base is None else f"{point.time_s / base.time_s:.3f}",
        f"{format_seconds(min(point.seconds))} – {format_seconds(max(point.seconds))}",
        f"{entry.difference}{note}",
        format_seconds(entry.ready_s),
    ]


def nbytes_of(point: Point) -> str:
    staging = f" + {format_nbytes(point.staging_nbytes)} staging" if point.staging_nbytes else ""
    return format_nbytes(point.peak_nbytes) + staging


WITHIN_HEAD = (
    "budget",
    "its peak",
    "ours",
    "exact or not",
    "time over its",
    "middle half of rounds",
    "at no more bytes at least as fast?",
)


def within_rows(entries: Sequence[Entry]) -> Iterator[Sequence[str]]:
    """Each eager contender beside the ones that had its peak for a budget."""
    points = {entry.name: entry.point for entry in entries}
    for peer in (entry for entry in entries if entry.contender.family in EAGER_FAMILIES):
        for family in OUR_FAMILIES:
            theirs, our = peer.point, points.get(ours(within(peer.name), family))
            if theirs is not None and our is not None:
                low, high = middle_half(our, theirs)
                yield [
                    peer.name + ("" if theirs.is_same_step else " (another computation)"),
                    format_nbytes(theirs.peak_nbytes),
                    nbytes_of(our),
                    family,
                    f"{our.time_s / theirs.time_s:.3f}",
                    f"{low:.3f} – {high:.3f}",
                    sufficient(our, theirs),
                ]


def tell(record: Record, title: str, entries: Sequence[Entry]) -> list[Point]:
    """The record of one network; its points, each plan once."""
    record.say(f"## {title}")
    record.table(HEAD, rows(entries))
    points = [point for entry in entries if entry.twin is None and (point := entry.point) is not None]
    record.say(*verdicts(points, OUR_FAMILIES, COMPILED_FAMILIES))
    compared = list(within_rows(entries))
    if compared:
        record.say("", f"{STRATEGY} with an eager contender's measured peak for its budget:")
        record.table(WITHIN_HEAD, compared)
    for entry in entries:
        if entry.memory is not None and entry.memory.unreleased_nbytes:
            nbytes = format_nbytes(entry.memory.unreleased_nbytes)
            record.say(f"- {entry.name}: {nbytes} of the recorded step were not seen to be released.")
    trials = (f"{e.name:44}" + "".join(f" {s:7.3f}" for s in e.seconds) for e in entries if e.seconds)
    record.say("", "Every trial, in seconds, in the order of the rounds:", "", "```text", *trials, "```", "")
    return points


HOW = (
    "- Peak: the highest sum of what PyTorch's allocator handed out during one step, on top of parameters, buffers,"
    " sample and what the contender keeps between steps. Workspaces inside ops count, for everybody alike.",
    "- Staging: resident pages of the disk tier's staging buffers, which all of vdnn's contenders share. They are"
    " outside a budget. Verdicts and picture count them in, for everyone who uses that tier.",
    "- Step: forward and backward from no gradients; the optimizer is outside. Medians over rounds that run everybody"
    " once, in a new order each time. `ready in` is the first step, with compiling and planning; caches of earlier runs"
    " shorten it.",
    "- Dominated: a peer has no more bytes and no more median time. In brackets, the middle half of the ratios within a"
    " round; where it is not wholly on the medians' side of 1, the two times are alike within noise.",
    "- Gradients: their distance from a plain step's with the same seed, over their norm. With dropout a large number"
    " can mean other masks: Inductor draws its own, parts of a batch draw one after the other. `WRONG for its loss`:"
    " forward gave the plain step's loss, so the masks were the same, and the gradients are not that loss's.",
    "- `other running statistics`: the contender leaves other values in batch normalization's buffers than eager does;"
    " a block that is run again moves them twice.",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [setting.name for setting in SETTINGS]
    parser.add_argument("--networks", nargs="*", choices=names, default=names)
    parser.add_argument("--contenders", nargs="*", choices=FAMILIES, default=FAMILIES, help="families; eager always is")
    parser.add_argument("--quick", action="store_true", help="fewer budgets of those that are swept")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=None)
    parser.add_argument("--image-size", type=int, default=None)
    parser.add_argument("--small", action="store_true", help="the same networks at toy widths, to try the script")
    parser.add_argument("--save", type=Path, default=None, help="a file for the record; the picture goes beside it")
    arguments = parser.parse_args()
    families = tuple(family for family in FAMILIES if family in (EAGER, *arguments.contenders))
    lineup = replace(QUICK if arguments.quick else Lineup(), families=families)
    record, panels, begin = Record(), {}, time.perf_counter()
    record.say("# Peak against step time", "", *provenance(), *HOW, "")
    if arguments.save:
        record.say(f"![peak against step time]({arguments.save.with_suffix('.svg').name})", "")
    for setting in (chosen(setting, arguments) for setting in SETTINGS if setting.name in arguments.networks):
        title = setting.heading(small=arguments.small)
        panels[title] = tell(record, title, compare(setting.load(small=arguments.small), lineup, arguments.rounds))
        record.say(f"{(time.perf_counter() - begin) / 60:.0f} minutes so far.", "")
        if arguments.save:  # after every network: an hour's work is not lost to whatever happens in the next
            record.save(arguments.save)
            arguments.save.with_suffix(".svg").write_text(picture(panels, CAPTION.format(rounds=arguments.rounds)))


def chosen(setting: Setting, arguments: argparse.Namespace) -> Setting:
    size = (arguments.image_size or setting.image_size) if setting.image_size is not None else None
    return replace(setting, batch=arguments.batch or setting.batch, image_size=size)


if __name__ == "__main__":
    main()
