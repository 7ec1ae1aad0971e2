"""The tables of the SuperNeurons paper (Wang et al., PPoPP 2018) beside ours.

Enters: a function that captures a network of the zoo, and whether to be quick. Leaves: tables. AlexNet's peaks, the
recomputation table and the deepest ResNet come from the paper's own lists of layers (`superneurons_networks.py`); the
largest batches from the networks as PyTorch runs them, on the paper's card.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from vdnn.hardware.presets import preset
from vdnn.ir import Graph
from vdnn.papers.batches import Scaled, fits, guess, largest
from vdnn.papers.paper_table import BLANK, Certainty, Figure, PaperRow, Table, count, mebibytes, said, yes_or_no
from vdnn.papers.superneurons_networks import NETWORKS, alexnet, bottlenecks
from vdnn.papers.superneurons_tables import (
    PAPER_DEVICE,
    PUBLISHED_ALEXNET_MIB,
    PUBLISHED_PEAKS_MIB,
    PUBLISHED_REPLAYS,
    RECOMPUTING,
    baseline_nbytes,
    forward_nbytes,
    moved_nbytes,
    offloading_convolutions,
    on_the_card,
    regulated_peak,
    row,
    superneurons_problem,
)
from vdnn.papers.vdnn_plans import OURS
from vdnn.plan.model.problem import Problem
from vdnn.plan.strategies.recompute import l_peak
from vdnn.units import MiB

Capture = Callable[[str, int, str], Problem]
"""Name, batch, device -> the problem of one training step."""

FRAMEWORKS = ("Caffe", "MXNet", "Torch", "TF")
PUBLISHED_BATCHES: dict[str, tuple[str, tuple[int | None, ...]]] = {
    "alexnet-lrn": ("AlexNet", (768, 768, 1024, 1408, 1792)),
    "vgg16": ("VGG16", (48, 64, 48, 80, 224)),
    "inception-v4": ("InceptionV4", (16, None, None, 64, 240)),
    "resnet50": ("ResNet50", (24, 80, 32, 128, 384)),
    "resnet101": ("ResNet101", (16, 48, 16, 80, 256)),
    "resnet152": ("ResNet152", (16, 32, 16, 48, 176)),
}
"""Largest batches on a K40c with 12 GB: four frameworks, then SuperNeurons. Single cells are not sure."""

PUBLISHED_DEPTHS = (148, 152, 480, 592, 1920)
"""Deepest ResNets at batch 16, the same five. The ratio 1920 / 592 is the abstract's; the depths are second hand."""

BATCH_UNIT = 8  # every published batch is a multiple of it
SMALL_BATCH = 8  # what a network is captured with: above 1, where kernels may differ, and otherwise as small as any

GROUPS = (6, 32, 6)  # bottlenecks in the first, second and last group of the deep ResNets; the third varies
DEEP_BATCH = 16
RESNET_2500 = (6, 32, 788, 6)

_SAME = "follows from shapes and dependency lists: equal"
_GRADIENTS = "every map and gradient here; the paper leaves some gradients out, and which is not known"
_AHEAD = "how far ahead the paper fetches is not known; ours fetches a map at its use, the least there can be"


def tables(capture: Capture, quick: bool = False) -> Iterator[Table]:
    yield alexnet_peaks()
    yield recomputation(("AlexNet(200)",) if quick else tuple(NETWORKS))
    yield transfers((256, 1024) if quick else (256, 512, 896, 1024))
    names = tuple(PUBLISHED_BATCHES)[:1] if quick else tuple(PUBLISHED_BATCHES)
    yield largest_batches(capture, names)
    yield deepest_resnets(quick)


def alexnet_peaks() -> Table:
    """Technique after technique, AlexNet with 200 images."""
    graph = alexnet()
    problem = superneurons_problem(graph)
    published = PUBLISHED_ALEXNET_MIB
    largest_layer = PUBLISHED_PEAKS_MIB["AlexNet(200)"][2]
    rows = (
        PaperRow(
            ("outputs of all layers",),
            (mebibytes(forward_nbytes(graph)),),
            (said("1469.592 MiB", 1469.592 * MiB),),
            Certainty.COMPUTED,
            _SAME,
        ),
        _peak("baseline: nothing shared", baseline_nbytes(graph), published["baseline"], _GRADIENTS),
        _peak("liveness", row(graph, "keep-all").peak_nbytes, published["liveness"], _SAME),
        _peak(
            "and offloading of convolutions",
            regulated_peak(offloading_convolutions(problem)),
            published["liveness and offloading"],
            _AHEAD,
        ),
        _peak("and recomputation", row(graph, "superneurons").peak_nbytes, largest_layer, _SAME),
        _peak("largest need of one layer, l_peak", l_peak(problem), largest_layer, _SAME),
    )
    note = "Maps, their gradients and workspaces (zero here); weights, images and masks are not regulated."
    return Table("AlexNet, 200 images: peak by technique", ("technique",), ("ours",), ("published",), rows, note)


def _peak(what: str, nbytes: int, published_mib: float, why: str) -> PaperRow:
    text = f"{published_mib} MiB"
    return PaperRow((what,), (mebibytes(nbytes),), (said(text, published_mib * MiB),), Certainty.SECOND_HAND, why)


def recomputation(networks: Sequence[str]) -> Table:
    """The paper's table 1."""
    rows = tuple(line for name in networks for line in _strategies(name, NETWORKS[name]()))
    note = (
        "Replays are forward layers that run a second time. The recompute strategies keep every checkpoint on the"
        " device; the paper's peaks are of a runtime that also moves them to the host, as superneurons does here."
    )
    heads = ("replays", "peak, MiB")
    return Table(
        "Recomputation (table 1)",
        ("network", "strategy"),
        heads,
        ("published replays", "published peak, MiB"),
        rows,
        note,
    )


def _strategies(name: str, graph: Graph) -> Iterator[PaperRow]:
    pairs = [*zip(RECOMPUTING, PUBLISHED_REPLAYS[name], PUBLISHED_PEAKS_MIB[name], strict=True)]
    for strategy, replays, peak_mib in (*pairs, ("superneurons", *pairs[-1][1:])):
        ours = row(graph, strategy)
        published = said(str(replays), replays), said(str(peak_mib), peak_mib * MiB)
        is_same_peak = round(ours.peak_nbytes / MiB, 2) == round(peak_mib, 2)
        why = _why(name, strategy, ours.num_replays == replays, is_same_peak)
        yield PaperRow((name, strategy), (count(ours.num_replays), _mib(ours.peak_nbytes)), published, _sure(name), why)


def _mib(nbytes: int) -> Figure:
    return Figure(nbytes, f"{nbytes / MiB:.3f}")


def _sure(name: str) -> Certainty:
    """The counts of the ResNets were solved from the numbers; AlexNet's follow from its layers."""
    return Certainty.SECOND_HAND if name.startswith("AlexNet") else Certainty.FITTED


def _why(name: str, strategy: str, is_same_count: bool, is_same_peak: bool) -> str:
    if strategy == "superneurons":
        peak = (
            "peak equal" if is_same_peak else "peak: four of the widest maps, the paper's was never derived from shapes"
        )
        return f"{peak}; a segment that would not fit at the floor is offloaded here and not replayed"
    replays = "replays equal" if is_same_count else "replays differ"
    if _sure(name) is Certainty.FITTED:
        replays += ", but which graph the paper counted is known from a fit only: confirms nothing"
    return f"{replays}; peak: checkpoints stay on the device here"


def transfers(batches: Sequence[int]) -> Table:
    """What the tensor cache saves: bytes copied per step, by batch."""
    published = {256: (2.56, 0.0), 896: (None, 0.0), 1024: (None, 0.88)}
    rows = tuple(_traffic(batch, *published.get(batch, (None, None))) for batch in batches)
    note = (
        "Both directions, per step. Without a cache every output of a convolution goes and returns; with one, only"
        " what the card's 12 GiB ask for (superneurons) does. What the paper counts is not known in detail."
    )
    heads = ("always", "as needed")
    return Table(
        "AlexNet: bytes copied per step", ("batch",), heads, ("published always", "published as needed"), rows, note
    )


def _traffic(batch: int, always_gb: float | None, needed_gb: float | None) -> PaperRow:
    problem = superneurons_problem(alexnet(batch))
    always = moved_nbytes(offloading_convolutions(problem))
    needed = moved_nbytes(on_the_card(problem))
    published = tuple(BLANK if gb is None else said(f"{gb:g} GB", gb * 1e9) for gb in (always_gb, needed_gb))
    why = "weights, maps and gradients fit the card here; the paper's card also held workspaces" if needed_gb else ""
    is_known = any(figure.text for figure in published)
    return PaperRow((str(batch),), (_gb(always), _gb(needed)), published, _unsure(is_known), why)


def _unsure(is_known: bool) -> Certainty:
    return Certainty.UNSURE if is_known else Certainty.UNKNOWN


def _gb(nbytes: int) -> Figure:
    return Figure(nbytes, f"{nbytes / 1e9:.2f} GB")


def largest_batches(capture: Capture, names: Sequence[str]) -> Table:
    """By planning each network, as PyTorch runs it, for the paper's card."""
    strategies = ("keep-all", "superneurons", OURS)
    rows = tuple(_largest_batch(capture, name, strategies) for name in names)
    note = (
        "Ours: float32, parameters and gradients counted, no optimizer state, no workspaces, the whole 12 GiB of the"
        " card as budget, multiples of 8. Maps may go to 64 GiB of host memory and then to disk. A framework's own"
        " overhead, its workspaces and what the driver keeps are in the published figures and not in ours."
    )
    return Table(
        f"Largest batch on {PAPER_DEVICE}, 12 GB", ("network",), strategies, (*FRAMEWORKS, "published"), rows, note
    )


def _largest_batch(capture: Capture, name: str, strategies: Sequence[str]) -> PaperRow:
    title, published = PUBLISHED_BATCHES[name]
    one, other = (capture(name, SMALL_BATCH + more, PAPER_DEVICE).graph for more in (0, 1))
    scaled = Scaled(SMALL_BATCH, one, other)
    ours = tuple(count(_largest(scaled.at, strategy, BATCH_UNIT, (8, 16))) for strategy in strategies)
    theirs = tuple(said("not run") if number is None else count(number) for number in published)
    return PaperRow((title,), ours, theirs, Certainty.UNSURE)


def _largest(graph_of: Callable[[int], Graph], strategy: str, unit: int, near: tuple[int, int]) -> int:
    machine = preset(PAPER_DEVICE)
    start = guess(graph_of, machine, strategy, near) // unit
    return unit * largest(lambda units: fits(graph_of(unit * units), machine, strategy), start)


def deepest_resnets(quick: bool = False) -> Table:
    """Bottlenecks (6, 32, n, 6): how large n may be with 16 images, and whether the paper's deepest trains with one."""
    strategies = ("keep-all",) if quick else ("keep-all", "superneurons")
    rows = [_deepest(strategy) for strategy in strategies]
    if not quick:
        rows.append(_resnet_2500())
    note = (
        "3 x (6 + 32 + n + 6) + 2 weighted layers, from lists of layers; weights and their gradients counted, no"
        " workspaces; maps may go to the host and then to disk. Published, in order: Caffe, Torch, MXNet, TensorFlow,"
        " SuperNeurons."
    )
    return Table("Deepest ResNet on 12 GB", ("what", "strategy"), ("ours",), ("published",), tuple(rows), note)


def _deepest(strategy: str) -> PaperRow:
    n = _largest(lambda size: _deep(size, DEEP_BATCH), strategy, 1, (20, 40))
    depth = 3 * (sum(GROUPS) + n) + 2
    others = " / ".join(map(str, PUBLISHED_DEPTHS[:-1]))
    published = others if strategy == "keep-all" else str(PUBLISHED_DEPTHS[-1])
    why = (
        "what no technique but liveness reaches, against frameworks that share more or less memory"
        if strategy == "keep-all"
        else "the floor here is weights and their gradients; the paper stops earlier, and why is not known"
    )
    return PaperRow(
        (f"layers, batch {DEEP_BATCH}", strategy), (count(depth),), (said(published),), Certainty.SECOND_HAND, why
    )


def _deep(n: int, batch: int) -> Graph:
    first, second, last = GROUPS
    return bottlenecks((first, second, n, last), batch)


def _resnet_2500() -> PaperRow:
    trains = fits(bottlenecks(RESNET_2500, 1), preset(PAPER_DEVICE), "superneurons")
    return PaperRow(("2498 layers, batch 1", "superneurons"), (yes_or_no(trains),), (yes_or_no(True),), Certainty.FOUND)
