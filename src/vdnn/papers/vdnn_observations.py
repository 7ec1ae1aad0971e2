"""What the vDNN paper (Rhu et al., MICRO 2016, section 2) says about its networks before it changes anything.

Enters: the networks with their plans. Leaves: one table.
"""

from __future__ import annotations

from vdnn.ir import Role
from vdnn.papers.paper_table import Certainty, PaperRow, Table, percent, percents, said, seconds
from vdnn.papers.vdnn_plans import DEEP, Networks, Planned
from vdnn.plan.model.timeline import COMPUTE
from vdnn.plan.plan import Plan
from vdnn.plan.strategies.recompute import l_peak

_CLOCK = "times from peak rates; what the paper measured from where to where is not known"


def observations(networks: Networks) -> Table:
    """What the paper says about its networks before it changes anything."""
    rows = [
        PaperRow(
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
        PaperRow(
            ("unused by the active layer", "all"), (percents(idle),), (said("53-79 %"),), Certainty.SECOND_HAND, why
        )
    )
    for name, text in (("AlexNet(128)", "about 60 ms"), ("VGG-16(64)", "more than 1.2 s")):
        if name in networks:
            reuse = seconds(_reuse_distance_s(networks[name].oracle))
            rows.append(PaperRow(("reuse of the first map", name), (reuse,), (said(text),), Certainty.UNSURE, _CLOCK))
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
    moments = plan.timeline.moments[lane.instructions]
    first = next(moment for moment, op in enumerate(ops) if "convolution" in op.target)
    last = next(moment for moment, op in enumerate(ops) if op.name == f"{ops[first].name}_backward")
    return float(lane.begin_s[moments == last].min() - lane.end_s[moments == first].max())
