"""The tables of the vDNN paper (Rhu et al., MICRO 2016, sections 2 and 5) beside ours.

Enters: whether to be quick. Leaves: tables of what the ten networks take and lose on the paper's machine, under its
policies and under the strategy of this project. How bytes are counted stands in `vdnn_tables.py`; the bars of the
paper's figures by network are not known, so most rows have no published figure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean

from vdnn.papers.paper_table import (
    BLANK,
    Certainty,
    Figure,
    PaperRow,
    Table,
    gigabytes,
    percent,
    percents,
    said,
    seconds,
    yes_or_no,
)
from vdnn.papers.vdnn_networks import NETWORKS
from vdnn.papers.vdnn_observations import observations
from vdnn.papers.vdnn_plans import DEEP, OURS, Networks, Planned
from vdnn.papers.vdnn_tables import PUBLISHED_AVERAGE_REDUCTION, Reduction, reduction_of, weights_nbytes
from vdnn.plan.plan import Plan

QUICK_NETWORKS = ("AlexNet(128)", "VGG-16(128)", "VGG-16(256)")
UNTRAINABLE = ("VGG-16(128)", "VGG-16(256)", *DEEP)
"""What the paper's baseline could not train: six of ten, of 14 to 67 GB."""

PUBLISHED_BASELINE = {
    "AlexNet(128)": said("1.1 GB", 1.1e9),
    "VGG-16(128)": said("about 14 GB", 14e9),
    "VGG-16(256)": said("28 GB", 28e9),
    "VGG-416(32)": said("67 GB", 67e9),
}

_WORKSPACE = "workspaces of cuDNN 4 are not counted here: which algorithms it chose is not known"
_AVERAGE = "an upper end, and of what the paper averages nothing is known; ours is the mean over layer ops"
_FITS = "without workspaces the baseline is smaller than the paper's, and just below the card"
_COPIES = "ours are the copies alone, at peak rates; the paper's loss may include slower algorithms with less workspace"
_LARGER = "ours is more: how the paper's figure divides into weights, gradients and maps is not known"


def tables(quick: bool = False) -> Iterator[Table]:
    names = QUICK_NETWORKS if quick else tuple(NETWORKS)
    networks = {name: Planned(NETWORKS[name]()) for name in names}
    yield baselines(networks)
    yield memory(networks)
    yield trainable(networks)
    yield performance(networks)
    if not quick:
        yield very_deep({name: networks[name] for name in DEEP})
    yield observations(networks)


def baselines(networks: Networks) -> Table:
    """What the paper's baseline allocates for the whole step."""
    rows = tuple(_baseline(name, network) for name, network in networks.items())
    note = "Every map, two gradient maps of the largest size, weights and their gradients. GB are 10^9 bytes."
    return Table("What the baseline allocates", ("network",), ("ours",), ("published",), rows, note)


def _baseline(name: str, network: Planned) -> PaperRow:
    published = PUBLISHED_BASELINE.get(name, BLANK)
    certainty = Certainty.FOUND if published.text else Certainty.UNKNOWN
    why = "" if published.value is None else _LARGER if network.baseline_nbytes > published.value else _WORKSPACE
    return PaperRow((name,), (gigabytes(network.baseline_nbytes),), (published,), certainty, why)


def memory(networks: Networks) -> Table:
    """The largest and the average bytes of a step, by policy, and what they save of the baseline."""
    rows = [row for name, network in networks.items() for row in _policies(name, network)]
    hard = [reduction_of(networks[name].every).average_reduction for name in UNTRAINABLE if name in networks]
    saved = (BLANK, BLANK, BLANK, percents(hard, places=0), BLANK)
    span = said("73-98 %")
    rows.append(PaperRow(("did not fit", "vdnn-all(m)"), saved, (span,), Certainty.FOUND, _AVERAGE))
    note = (
        "Means are over layer ops. The last column of ours leaves out weights and their gradients, which vDNN does"
        f" not manage. {OURS} is given the peak of vdnn-all(m) as its budget, vdnn-dyn the whole card."
        " The very deep networks are left to the paper's policies here."
    )
    heads = ("peak, GB", "saved of peak", "mean, GB", "saved of mean", "saved of maps")
    return Table("Memory by policy", ("network", "policy"), heads, ("published mean saved",), tuple(rows), note)


def _policies(name: str, network: Planned) -> Iterator[PaperRow]:
    plans = [("vdnn-conv(m)", network.conv), ("vdnn-all(m)", network.every), ("vdnn-dyn", network.dyn)]
    if name not in DEEP:  # a plan as small as theirs takes a minute for each of those
        plans.append((OURS, network.ours_small))
    for policy, plan in plans:
        share = PUBLISHED_AVERAGE_REDUCTION.get(name) if policy == "vdnn-all(m)" else None
        published = BLANK if share is None else said(f"{100 * share:.0f} %", share)
        certainty = Certainty.UNKNOWN if share is None else Certainty.FOUND
        yield PaperRow((name, policy), _saved(plan), (published,), certainty, "" if share is None else _AVERAGE)


def _saved(plan: Plan | None) -> tuple[Figure, ...]:
    if plan is None:
        return (said("does not fit"), BLANK, BLANK, BLANK, BLANK)
    row: Reduction = reduction_of(plan)
    peak, average = (Figure(nbytes, f"{nbytes / 1e9:.2f}") for nbytes in (row.peak_nbytes, row.average_nbytes))
    saved = (row.maximum_reduction, row.average_reduction, row.managed_average_reduction)
    of_peak, of_average, of_maps = (percent(share, places=0) for share in saved)
    return peak, of_peak, average, of_average, of_maps


def trainable(networks: Networks) -> Table:
    rows = tuple(_trains(name, network) for name, network in networks.items())
    note = (
        "Whether the peak is within the card's 12 GiB. vDNN trains all ten networks; six of them the baseline cannot."
    )
    heads = ("baseline", "vdnn-all(m)", "vdnn-dyn", OURS)
    return Table(
        "Which networks train on 12 GB", ("network",), heads, ("published baseline", "published vDNN"), rows, note
    )


def _trains(name: str, network: Planned) -> PaperRow:
    fits_baseline = network.baseline_nbytes <= network.card_nbytes
    ours = (
        yes_or_no(fits_baseline),
        yes_or_no(network.every.peak_nbytes <= network.card_nbytes),
        yes_or_no(network.dyn is not None),
        yes_or_no(network.ours is not None),
    )
    published = yes_or_no(name not in UNTRAINABLE), yes_or_no(True)
    return PaperRow((name,), ours, published, Certainty.FOUND, _FITS if fits_baseline != published[0].value else "")


def performance(networks: Networks) -> Table:
    """What vDNN costs in time, against a card with room for everything."""
    rows = [_slower(name, network) for name, network in networks.items()]
    dyn, ours = ([n.oracle.step_time_s / p.step_time_s for n, p in _made(networks, which)] for which in ("dyn", "ours"))
    mean = said("about 97 %", 0.97)
    why = "over the networks shown here; the paper's mean is over all ten, with algorithms to choose from"
    rows.append(
        PaperRow(
            ("mean speed",), (BLANK, percent(fmean(dyn)), percent(fmean(ours))), (mean,), Certainty.SECOND_HAND, why
        )
    )
    note = (
        "Time beyond the oracle's, which keeps everything. Static policies with slow algorithms lost 55 to 58 % in the"
        " paper (second hand, unsure): that is the algorithms' loss, and none are modelled here."
    )
    heads = ("oracle's step", "vdnn-dyn", OURS)
    return Table("Time lost on 12 GB", ("network",), heads, ("published vDNN-dyn",), tuple(rows), note)


def _made(networks: Networks, which: str) -> Sequence[tuple[Planned, Plan]]:
    found = [(network, getattr(network, which)) for network in networks.values()]
    return [(network, plan) for network, plan in found if plan is not None]


def _slower(name: str, network: Planned) -> PaperRow:
    ours = (seconds(network.oracle.step_time_s), network.overhead(network.dyn), network.overhead(network.ours))
    if name == "VGG-16(256)":
        return PaperRow((name,), ours, (said("18 %", 0.18),), Certainty.FOUND, _COPIES)
    if name in UNTRAINABLE:
        return PaperRow((name,), ours, (said("1-18 %"),), Certainty.FOUND, _COPIES)
    return PaperRow((name,), ours)


def very_deep(networks: Networks) -> Table:
    """Where the bytes of the VGGs of 116 to 416 layers are."""
    rows = tuple(_deep(name, network) for name, network in networks.items())
    note = (
        "Under vdnn-all(m). Share on the host: the most bytes there, of those and the card's peak together. The paper"
        " saw no noticeable slowdown (second hand)."
    )
    heads = ("baseline", "card", "host", "share on host", "time lost")
    return Table(
        "Very deep VGGs, 32 images", ("network",), heads, ("published card", "published share on host"), rows, note
    )


def _deep(name: str, network: Planned) -> PaperRow:
    plan = network.every
    host_nbytes = int(plan.timeline.total("host").max())
    ours = (
        gigabytes(network.baseline_nbytes),
        gigabytes(plan.peak_nbytes),
        gigabytes(host_nbytes),
        percent(host_nbytes / (host_nbytes + plan.peak_nbytes)),
        network.overhead(plan),
    )
    card = said("about 4.2 GB", 4.2e9) if name == "VGG-416(32)" else BLANK
    weights = gigabytes(2 * weights_nbytes(network.graph)).text
    why = f"weights and their gradients are {weights} already: the paper cannot have counted both" if card.text else ""
    return PaperRow((name,), ours, (card, said("81-92 %")), Certainty.SECOND_HAND, why)
