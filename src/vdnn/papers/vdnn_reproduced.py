"""The tables of the vDNN paper (Rhu et al., MICRO 2016, sections 2 and 5) beside ours.

Enters: whether to be quick. Leaves: tables of what the ten networks take and lose on the paper's machine, under its
policies and under the strategy of this project. How bytes are counted stands in `vdnn_tables.py`; the bars of the
paper's figures by network are not known, so most rows have no published figure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

from vdnn.errors import Infeasible
from vdnn.hardware.presets import preset
from vdnn.ir import Graph, Role
from vdnn.papers.figures import (
    BLANK,
    Certainty,
    Figure,
    Row,
    Table,
    gigabytes,
    percent,
    percents,
    said,
    seconds,
    yes_or_no,
)
from vdnn.papers.vdnn_networks import NETWORKS
from vdnn.papers.vdnn_tables import (
    MACHINE,
    PUBLISHED_AVERAGE_REDUCTION,
    Reduction,
    baseline_nbytes,
    paper_problem,
    reduction_of,
    weights_nbytes,
)
from vdnn.plan.plan import Plan
from vdnn.plan.strategies import STRATEGIES, solve
from vdnn.plan.strategies.recompute import l_peak
from vdnn.plan.timeline import COMPUTE

QUICK = ("AlexNet(128)", "VGG-16(128)", "VGG-16(256)")
DEEP = ("VGG-116(32)", "VGG-216(32)", "VGG-316(32)", "VGG-416(32)")
UNTRAINABLE = ("VGG-16(128)", "VGG-16(256)", *DEEP)
"""What the paper's baseline could not train: six of ten, of 14 to 67 GB."""

PUBLISHED_BASELINE = {
    "AlexNet(128)": said("1.1 GB", 1.1e9),
    "VGG-16(128)": said("about 14 GB", 14e9),
    "VGG-16(256)": said("28 GB", 28e9),
    "VGG-416(32)": said("67 GB", 67e9),
}

_WORKSPACE = "workspaces of cuDNN 4 are not counted here: which algorithms it chose is not known"
_AVERAGE = "the paper does not say what it averages; ours is the mean over layer steps without weights and workspaces"
_FITS = "without workspaces the baseline is smaller than the paper's, and just below the card"
_COPIES = "ours are the copies alone, at peak rates; the paper's loss may include slower algorithms with less workspace"
_CLOCK = "times from peak rates; what the paper measured from where to where is not known"
_LARGER = "ours is more: how the paper's figure divides into weights, gradients and maps is not known"


def our_strategy() -> str:
    """The optimiser of this project."""
    return "auto" if "auto" in STRATEGIES else "offload"


def tables(quick: bool = False) -> Iterator[Table]:
    names = QUICK if quick else tuple(NETWORKS)
    networks = {name: Planned(NETWORKS[name]()) for name in names}
    yield baselines(networks)
    yield memory(networks)
    yield trainable(networks)
    yield performance(networks)
    if not quick:
        yield very_deep({name: networks[name] for name in DEEP})
    yield observations(networks)


@dataclass
class Planned:
    """A network and its plans on the paper's machine, each made once."""

    graph: Graph

    @property
    def card_nbytes(self) -> int:
        nbytes = preset(MACHINE).device.nbytes
        assert nbytes is not None, f"the preset {MACHINE} has a size"
        return nbytes

    @cached_property
    def baseline_nbytes(self) -> int:
        return baseline_nbytes(paper_problem(self.graph))

    @cached_property
    def oracle(self) -> Plan:
        """Everything kept, on a card that has room for it."""
        return solve(paper_problem(self.graph), "keep-all")

    @cached_property
    def every(self) -> Plan:
        return solve(paper_problem(self.graph), "vdnn-all(m)")

    @cached_property
    def conv(self) -> Plan:
        return solve(paper_problem(self.graph), "vdnn-conv(m)")

    @cached_property
    def dyn(self) -> Plan | None:
        return self._within(self.card_nbytes, "vdnn-dyn")

    @cached_property
    def ours(self) -> Plan | None:
        """On the whole card: as fast as it can be."""
        return self._within(self.card_nbytes, our_strategy())

    @cached_property
    def ours_small(self) -> Plan | None:
        """In the bytes of vdnn-all(m)."""
        return self._within(self.every.peak_nbytes, our_strategy())

    def overhead(self, plan: Plan | None) -> Figure:
        """Time over the oracle's, beyond it."""
        return BLANK if plan is None else percent(plan.step_time_s / self.oracle.step_time_s - 1)

    def _within(self, budget_nbytes: int, strategy: str) -> Plan | None:
        try:
            return solve(paper_problem(self.graph, budget_nbytes), strategy)
        except Infeasible:
            return None


Networks = Mapping[str, Planned]


def baselines(networks: Networks) -> Table:
    """What the paper's baseline allocates for the whole step."""
    rows = tuple(_baseline(name, network) for name, network in networks.items())
    note = "Every map, two gradient maps of the largest size, weights and their gradients. GB are 10^9 bytes."
    return Table("What the baseline allocates", ("network",), ("ours",), ("published",), rows, note)


def _baseline(name: str, network: Planned) -> Row:
    published = PUBLISHED_BASELINE.get(name, BLANK)
    certainty = Certainty.FOUND if published.text else Certainty.UNKNOWN
    why = "" if published.value is None else _LARGER if network.baseline_nbytes > published.value else _WORKSPACE
    return Row((name,), (gigabytes(network.baseline_nbytes),), (published,), certainty, why)


def memory(networks: Networks) -> Table:
    """The largest and the average bytes of a step, by policy, and what they save of the baseline."""
    rows = [row for name, network in networks.items() for row in _policies(name, network)]
    hard = [reduction_of(networks[name].every).average_reduction for name in UNTRAINABLE if name in networks]
    saved = (BLANK, BLANK, BLANK, percents(hard, places=0), BLANK)
    span = said("73 to 98 %")
    rows.append(Row(("did not fit", "vdnn-all(m)"), saved, (span,), Certainty.FOUND, _AVERAGE))
    note = (
        "Means are over layer steps. The last column of ours leaves out weights and their gradients, which vDNN does"
        f" not manage. {our_strategy()} is given the peak of vdnn-all(m) as its budget, vdnn-dyn the whole card."
    )
    heads = ("peak, GB", "saved of peak", "mean, GB", "saved of mean", "saved of maps")
    return Table("Memory by policy", ("network", "policy"), heads, ("mean saved",), tuple(rows), note)


def _policies(name: str, network: Planned) -> Iterator[Row]:
    plans = (("vdnn-conv(m)", network.conv), ("vdnn-all(m)", network.every), ("vdnn-dyn", network.dyn))
    for policy, plan in (*plans, (our_strategy(), network.ours_small)):
        share = PUBLISHED_AVERAGE_REDUCTION.get(name) if policy == "vdnn-all(m)" else None
        published = BLANK if share is None else said(f"up to {100 * share:.0f} %", share)
        certainty = Certainty.UNKNOWN if share is None else Certainty.FOUND
        yield Row((name, policy), _saved(plan), (published,), certainty, "" if share is None else _AVERAGE)


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
    heads = ("baseline", "vdnn-all(m)", "vdnn-dyn", our_strategy())
    return Table("Which networks train on 12 GB", ("network",), heads, ("baseline", "vDNN"), rows, note)


def _trains(name: str, network: Planned) -> Row:
    fits_baseline = network.baseline_nbytes <= network.card_nbytes
    ours = (
        yes_or_no(fits_baseline),
        yes_or_no(network.every.peak_nbytes <= network.card_nbytes),
        yes_or_no(network.dyn is not None),
        yes_or_no(network.ours is not None),
    )
    published = yes_or_no(name not in UNTRAINABLE), yes_or_no(True)
    return Row((name,), ours, published, Certainty.FOUND, _FITS if fits_baseline != published[0].value else "")


def performance(networks: Networks) -> Table:
    """What vDNN costs in time, against a card with room for everything."""
    rows = [_slower(name, network) for name, network in networks.items()]
    dyn, ours = ([n.oracle.step_time_s / p.step_time_s for n, p in _made(networks, which)] for which in ("dyn", "ours"))
    mean = said("about 97 %", 0.97)
    why = "over the networks shown here; the paper's mean is over all ten, with algorithms to choose from"
    rows.append(
        Row(("mean speed",), (BLANK, percent(fmean(dyn)), percent(fmean(ours))), (mean,), Certainty.REMEMBERED, why)
    )
    note = (
        "Time beyond the oracle's, which keeps everything. Static policies with slow algorithms lost 55 to 58 % in the"
        " paper (remembered, unsure): that is the algorithms' loss, and none are modelled here."
    )
    heads = ("oracle's step", "vdnn-dyn", our_strategy())
    return Table("Time lost on 12 GB", ("network",), heads, ("vDNN-dyn",), tuple(rows), note)


def _made(networks: Networks, which: str) -> Sequence[tuple[Planned, Plan]]:
    found = [(network, getattr(network, which)) for network in networks.values()]
    return [(network, plan) for network, plan in found if plan is not None]


def _slower(name: str, network: Planned) -> Row:
    ours = (seconds(network.oracle.step_time_s), network.overhead(network.dyn), network.overhead(network.ours))
    if name == "VGG-16(256)":
        return Row((name,), ours, (said("18 %", 0.18),), Certainty.FOUND, _COPIES)
    if name in UNTRAINABLE:
        return Row((name,), ours, (said("1 to 18 %"),), Certainty.FOUND, _COPIES)
    return Row((name,), ours)


def very_deep(networks: Networks) -> Table:
    """Where the bytes of the VGGs of 116 to 416 layers are."""
    rows = tuple(_deep(name, network) for name, network in networks.items())
    note = (
        "Under vdnn-all(m). Share on the host: the most bytes there, of those and the card's peak together. The paper"
        " saw no noticeable slowdown (remembered)."
    )
    heads = ("baseline", "card", "host", "share on host", "time lost")
    return Table("Very deep VGGs, 32 images", ("network",), heads, ("card", "share on host"), rows, note)


def _deep(name: str, network: Planned) -> Row:
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
    return Row((name,), ours, (card, said("81 to 92 %")), Certainty.REMEMBERED, why)


def observations(networks: Networks) -> Table:
    """What the paper says about its networks before it changes anything."""
    rows = [
        Row(
            ("layers that extract features", name),
            (percent(_feature_share(networks[name])),),
            (said(f"{100 * share:.0f} %", share),),
            Certainty.FOUND,
            "share of the baseline's bytes, which are others than the paper's; only convolutions have workspaces",
        )
        for name, share in (("AlexNet(128)", 0.81), ("VGG-16(256)", 0.96))
    ]
    idle = [1 - l_peak(n.oracle.problem) / n.baseline_nbytes for name, n in networks.items() if name not in DEEP]
    why = "1 - largest need of one layer / baseline, over the networks shown that are not very deep"
    rows.append(
        Row(("unused by the active layer", "all"), (percents(idle),), (said("53 to 79 %"),), Certainty.REMEMBERED, why)
    )
    for name, text in (("AlexNet(128)", "about 60 ms"), ("VGG-16(64)", "more than 1.2 s")):
        if name in networks:
            reuse = seconds(_reuse_distance_s(networks[name].oracle))
            rows.append(Row(("reuse of the first map", name), (reuse,), (said(text),), Certainty.UNSURE, _CLOCK))
    return Table("Observations", ("what", "network"), ("ours",), ("published",), tuple(rows))


def _feature_share(network: Planned) -> float:
    """Of the baseline's bytes, those that do not belong to fully connected layers."""
    classifier = sum(
        storage.nbytes
        for storage in network.graph.storages
        if storage.role in (Role.PARAMETER, Role.GRADIENT, Role.FEATURE_MAP) and _is_classifier(storage.name)
    )
    return 1 - classifier / network.baseline_nbytes


def _is_classifier(name: str) -> bool:
    return name.removeprefix("gradient of ").startswith(("fc", "classifier"))


def _reuse_distance_s(plan: Plan) -> float:
    """From the end of the first convolution to the start of its backward."""
    ops, lane = plan.problem.graph.ops, plan.timeline.lanes[COMPUTE]
    steps = plan.timeline.steps[lane.instructions]
    first = next(step for step, op in enumerate(ops) if "convolution" in op.target)
    last = next(step for step, op in enumerate(ops) if op.name == f"{ops[first].name}_backward")
    return float(lane.begin_s[steps == last].min() - lane.end_s[steps == first].max())
