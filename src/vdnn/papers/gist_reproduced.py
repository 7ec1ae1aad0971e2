"""The tables of the Gist paper (Jain et al., ISCA 2018) beside ours.

Enters: functions that capture a network and that look at its activations, and whether to be quick. Leaves: tables. The
footprints come from the networks as PyTorch runs them, planned for the paper's machine with its minibatch. The bars of
the paper's figures by network are not known, only their means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

from vdnn.codecs import Codec, codec_for
from vdnn.codecs.kernels.formats import FORMATS
from vdnn.codecs.kernels.sparse_layout import ROW
from vdnn.codecs.window_index import window_of
from vdnn.ir import Graph, Role, Storage
from vdnn.papers.gist_tables import (
    NETWORKS,
    PAPER_BATCH,
    PAPER_DEVICE,
    Footprint,
    GistNetwork,
    footprint,
    rounding,
    static_footprint,
)
from vdnn.papers.paper_table import BLANK, Certainty, Figure, PaperRow, Table, percent, percents, said, times
from vdnn.papers.vdnn_networks import vgg
from vdnn.plan.model.problem import Problem
from vdnn.plan.plan import Plan
from vdnn.plan.strategy_table import solve

Capture = Callable[[str, int, str], Problem]
Densities = Callable[[str], Sequence[float]]

QUICK_NETWORKS = ("alexnet", "nin")
_MEAN = (
    "the paper counts CNTK's allocation, so hold it beside the static columns; whether weights count is not known; what"
    " PyTorch saves for backward is not what CNTK saved"
)


def tables(capture: Capture, densities: Densities, quick: bool = False) -> Iterator[Table]:
    networks = [network for network in NETWORKS if network.is_papers and (not quick or network.name in QUICK_NETWORKS)]
    planned = {network: Encoded(capture(network.name, PAPER_BATCH, PAPER_DEVICE)) for network in networks}
    yield lossless(planned)
    yield lossy(planned)
    yield rounded(planned)
    yield encodings()
    yield stashed_maps()
    yield sparsity({network.title: densities(network.name) for network in networks})


@dataclass
class Encoded:
    """A network's plans, each made once."""

    problem: Problem

    def __post_init__(self) -> None:
        self._plans: dict[str, Plan] = {}

    def plan(self, strategy: str) -> Plan:
        if strategy not in self._plans:
            self._plans[strategy] = solve(self.problem, strategy)
        return self._plans[strategy]

    @cached_property
    def base(self) -> tuple[Footprint, Footprint]:
        kept = self.plan("keep-all")
        return footprint(kept.timeline), static_footprint(kept)

    def ratios(self, plan: Plan) -> tuple[float, ...]:
        """Live bytes and static groups, each with and without weights."""
        found = footprint(plan.timeline), static_footprint(plan)
        pairs = list(zip(self.base, found, strict=True))
        return (
            *(base.peak_nbytes / its.peak_nbytes for base, its in pairs),
            *(base.maps_nbytes / its.maps_nbytes for base, its in pairs),
        )

    def slower(self, plan: Plan) -> float:
        return plan.step_time_s / self.plan("keep-all").step_time_s - 1


HEADS = ("live", "static", "live, no weights", "static, no weights", "slower")


def lossless(planned: Mapping[GistNetwork, Encoded]) -> Table:
    rows = [_row((network.title,), encoded, encoded.plan("gist")) for network, encoded in planned.items()]
    published = said("about 1.4 x", 1.4), said("about 3 %", 0.03)
    rows.append(_mean(("mean",), rows, published, Certainty.SECOND_HAND))
    return Table(
        "Footprint ratio, lossless", ("network",), HEADS, ("published", "published slower"), tuple(rows), _note(planned)
    )


def lossy(planned: Mapping[GistNetwork, Encoded]) -> Table:
    rows = [
        _row((network.title, _format(network)), encoded, encoded.plan(f"gist-{network.format}"))
        for network, encoded in planned.items()
    ]
    published = said("1.8 x, up to 2 x", 1.8), said("4 %", 0.04)
    rows.append(_mean(("mean", ""), rows, published, Certainty.FOUND))
    note = (
        "Each network with the smallest format that the paper trained it in without loss of accuracy (second hand;"
        " NiN's is not known, fp10 is a guess). With dynamic allocation and kernels that read codes the paper has up to"
        " 4.1 x, on AlexNet (found): the column to hold beside that is live, no weights."
    )
    heads = ("published", "published slower")
    return Table("Footprint ratio, lossless and lossy", ("network", "format"), HEADS, heads, tuple(rows), note)


def _format(network: GistNetwork) -> str:
    return network.format + (", a guess" if network.is_guess else "")


def _note(planned: Mapping[GistNetwork, Encoded]) -> str:
    density = next(iter(planned.values())).problem.density
    return (
        f"keep-all's footprint over the plan's, minibatch {PAPER_BATCH}, {PAPER_DEVICE}. Live: peak of live bytes."
        f" Static: CNTK's groups. Sparse codes have room for {density:.0%} non-zero elements. Slower: simulated, codecs"
        " at the speed of memory. A figure per network was published as bars, which are unknown."
    )


def _row(what: tuple[str, ...], encoded: Encoded, plan: Plan) -> PaperRow:
    figures = (*map(times, encoded.ratios(plan)), percent(encoded.slower(plan)))
    return PaperRow(what, figures, (BLANK, BLANK))


def _mean(
    what: tuple[str, ...], rows: Sequence[PaperRow], published: tuple[Figure, ...], certainty: Certainty
) -> PaperRow:
    columns = zip(*(row.ours for row in rows), strict=True)
    *mean_ratios, slower = (fmean(figure.value or 0 for figure in column) for column in columns)
    return PaperRow(what, (*map(times, mean_ratios), percent(slower)), published, certainty, _MEAN)


def rounded(planned: Mapping[GistNetwork, Encoded]) -> Table:
    """Delayed precision reduction alone, over the networks."""
    published = {"fp16": said("about 1.18 x", 1.18), "fp8": said("about 1.48 x", 1.48)}
    rows = []
    for format in ("fp16", "fp10", "fp8"):
        found = [encoded.ratios(rounding(encoded.problem, format)) for encoded in planned.values()]
        ours = tuple(times(fmean(column)) for column in zip(*found, strict=True))
        figure = published.get(format, BLANK)
        certainty = Certainty.UNSURE if figure.text else Certainty.UNKNOWN
        rows.append(PaperRow((format,), ours, (figure,), certainty, _MEAN if figure.text else ""))
    note = "Means over the networks above, every map in the short format between its two uses, nothing else encoded."
    return Table("Rounding alone", ("format",), HEADS[:-1], ("published",), tuple(rows), note)


_ELEMENTS = 1 << 20
_POOL_3X3 = (1, 3, 3, 1, 2, 2, 0, 0, 0, 1, 1, 1, 1, 2049, 2049, 1, 1024, 1024, 1, 1)


def encodings() -> Table:
    """What each encoding makes of a million elements, and from which share of zeros on sparse ones are shorter."""
    rows = [
        _size("sign of a ReLU's output", "sign-mask", (0.0,) * 5, "32 x"),
        _window(),
        _short_float("fp16", "2 x, 1 + 5 + 10 bits"),
        _short_float("fp10", "3 x, 1 + 5 + 4 bits"),
        _short_float("fp8", "4 x, 1 + 4 + 3 bits"),
        _even("zeros at which CSR breaks even", "csr", "20 %", Certainty.SECOND_HAND),
        _even_by_formula("the same, by its formula", 1, 20.3),
        _even_by_formula("with columns of 4 bytes, by the formula", 4, 50.0),
        _even("zeros at which our bit mask breaks even", "sparse", "", Certainty.UNKNOWN),
    ]
    note = (
        f"Our codecs on {_ELEMENTS:,} float32 elements; break-even: the code is as long as the elements. CSR has rows"
        f" of {ROW} elements, so that a column is one byte: (1 - s)(4 + 1) + 4 / {ROW} = 4 bytes per element."
    )
    return Table("Encodings", ("what",), ("ours",), ("published",), tuple(rows), note)


def _codec(name: str, detail: tuple[float | int, ...]) -> Codec:
    return codec_for(name, Storage("map", 4 * _ELEMENTS, Role.FEATURE_MAP, "float32", (0,)), detail)


def _size(what: str, name: str, detail: tuple[float, ...], text: str, layout: str = "") -> PaperRow:
    """Times shorter."""
    ratio = times(4 * _ELEMENTS / _codec(name, detail).nbytes)
    return PaperRow((what,), (Figure(ratio.value, ratio.text + layout),), (said(text),), Certainty.SECOND_HAND)


def _short_float(name: str, text: str) -> PaperRow:
    layout = FORMATS[name]
    return _size(name, name, (), text, f", 1 + {layout.exponent_bits} + {layout.mantissa_bits} bits")


def _window() -> PaperRow:
    """Per output of a pool: PyTorch's own index has 64 bits, the paper compares with a float's 32."""
    window = window_of(_POOL_3X3)
    return PaperRow(
        ("place in a 3 x 3 window",),
        (times(32 / window.tap_bits),),
        (said("8 x", 8),),
        Certainty.SECOND_HAND,
        "4 bits against a float's 32; PyTorch keeps 64 bits, against which it is 16 x",
    )


def _even(what: str, name: str, text: str, certainty: Certainty) -> PaperRow:
    return PaperRow((what,), (percent(break_even(name)),), (said(text),), certainty)


def break_even(name: str) -> float:
    """The share of zeros at which a sparse encoding is as long as its elements, found by halving."""
    low, high = 0.0, 1.0
    for _ in range(20):  # 2^-20: an element
        middle = (low + high) / 2
        is_shorter = _codec(name, (1 - middle,)).nbytes < 4 * _ELEMENTS
        low, high = (low, middle) if is_shorter else (middle, high)
    return high


def _even_by_formula(what: str, column_nbytes: int, published: float) -> PaperRow:
    share = 1 - (4 - 4 / ROW) / (4 + column_nbytes)
    return PaperRow((what,), (percent(share),), (said(f"{published:g} %", published / 100),), Certainty.COMPUTED)


def stashed_maps() -> Table:
    """Which pairs of layers the elements that VGG-16 leaves for backward lie between."""
    shares = pairs(vgg(16, PAPER_BATCH))
    expected = {"ReLU -> pool": "40 %", "ReLU -> conv": "49 %", "pool -> conv": "10 %"}
    rows = tuple(
        PaperRow((pair,), (percent(share),), (said(expected.get(pair, "")),), _computed(pair in expected))
        for pair, share in shares.items()
    )
    note = "Share of elements. Computed figures follow from the shapes; the paper's own are bars, which are unknown."
    return Table("VGG-16's maps by the layers around them", ("pair",), ("ours",), ("published",), rows, note)


def _computed(is_known: bool) -> Certainty:
    return Certainty.COMPUTED if is_known else Certainty.UNKNOWN


_KINDS = {"convolution": "conv", "addmm": "linear", "max_pool2d_with_indices": "pool", "_softmax": "softmax"}


def pairs(graph: Graph) -> dict[str, float]:
    """Maker -> taker of every map, by share of elements; a ReLU in place makes the map it works on."""
    maker: dict[int, str] = {}
    found: dict[str, int] = {}
    for op in graph.ops[: graph.num_forward]:
        name = op.target.split(".")[1] if "." in op.target else op.target
        kind = "ReLU" if name == "relu_" else _KINDS.get(name)
        if kind is None:
            continue
        for storage in {graph.values[read.value].storage for read in op.reads} & maker.keys():
            if kind != "ReLU":
                pair = f"{maker[storage]} -> {kind}"
                found[pair] = found.get(pair, 0) + graph.storages[storage].nbytes
        maker.update({graph.values[value].storage: kind for value in op.writes})
    total = sum(found.values())
    return {pair: nbytes / total for pair, nbytes in sorted(found.items(), key=lambda item: -item[1])}


def sparsity(densities: Mapping[str, Sequence[float]]) -> Table:
    """How many activations are zero after the ReLUs of each network."""
    rows = [
        PaperRow((name,), (percents([1 - d for d in found]), percent(1 - fmean(found))), (BLANK,))
        for name, found in densities.items()
    ]
    every = [1 - density for found in densities.values() for density in found]
    why = "ours: fresh weights and random images; the paper's networks are being trained, which makes more zeros"
    typical = said("40-70 % typical, over 80 % late in VGG-16")
    rows.append(PaperRow(("all",), (percents(every), percent(fmean(every))), (typical,), Certainty.FOUND, why))
    heads = ("least and most", "mean")
    return Table("Zeros after ReLUs", ("network",), heads, ("published",), tuple(rows), "Share of elements, by ReLU.")
