"""Memory footprint ratios of Gist (Jain et al., ISCA 2018), computed for its networks.

Enters: the problem of a training step. Leaves: footprints of its plans, and ratios of them. The paper's figure is the
memory footprint ratio: the baseline's footprint over that with encodings, for one minibatch. Two ways to count a
footprint, each with and without the weights, which no encoding touches:

- the peak of what is live, which an allocator without waste would need;
- the paper's static allocation, CNTK's: whatever holds bytes, largest first, joins the first group of which no member
  lives at the same time; a group takes its largest member's bytes, the footprint is their sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from vdnn.codecs import codec_for
from vdnn.ir import Role
from vdnn.plan.judge.residency import holdings
from vdnn.plan.model.actions import Decision, Encode
from vdnn.plan.model.problem import Problem
from vdnn.plan.model.stashes import Stash, stashes
from vdnn.plan.model.timeline import ROLES, Timeline
from vdnn.plan.plan import Plan
from vdnn.plan.strategies import gist
from vdnn.plan.strategies.gist import MIN_ROUNDED_NBYTES
from vdnn.plan.strategies.strategy import Strategy

PAPER_DEVICE = "titan-x"
PAPER_BATCH = 64
PUBLISHED_REDUCTION = {"gist": "about 1.4", "chosen": "1.8, up to 2"}
"""Averages over the five networks. The second is the abstract's; the first is known at second hand."""

WEIGHTS = frozenset({Role.PARAMETER, Role.OPTIMIZER_STATE, Role.BUFFER, Role.GRADIENT})
BASE = "keep-all"
GISTS = ("gist", "gist-fp16", "gist-fp10", "gist-fp8")


@dataclass(frozen=True)
class GistNetwork:
    """`name` is the zoo's. `format` is the paper's smallest one that trained without loss of accuracy; where it is not
    known (`is_guess`), fp10, the middle one."""

    name: str
    title: str
    format: str
    is_guess: bool = False
    is_papers: bool = True


NETWORKS = (
    GistNetwork("alexnet", "AlexNet", "fp8"),
    GistNetwork("nin", "NiN", "fp10", is_guess=True),
    GistNetwork("overfeat", "OverFeat", "fp8"),
    GistNetwork("vgg16", "VGG-16", "fp16"),
    GistNetwork("googlenet", "Inception (GoogLeNet)", "fp10"),
    GistNetwork("inception-v3", "Inception v3", "fp10", is_guess=True, is_papers=False),
)


def with_only(codec: str, name: str) -> Strategy:
    """A strategy: Gist's plan with only the decisions that use this codec."""

    def solve(problem: Problem) -> Plan:
        decisions = gist.solve(problem).decisions
        chosen = (d for d in decisions if isinstance(d.action, Encode) and d.action.codec == codec)
        return Plan(problem, name, tuple(chosen))

    return Strategy(name, solve)


def rounding(problem: Problem, format: str) -> Plan:
    """Delayed precision reduction and nothing else: every map is held in the short format between its two uses."""
    found = (_rounded(problem, stash, format) for stash in stashes(problem.graph))
    return Plan(problem, f"rounding-{format}", tuple(decision for decision in found if decision is not None))


def _rounded(problem: Problem, stash: Stash, format: str) -> Decision | None:
    storage = problem.graph.storages[stash.storage]
    codec = codec_for(format, storage)
    if stash.back is None or not stash.is_map or not codec.is_possible or storage.nbytes < MIN_ROUNDED_NBYTES:
        return None
    seconds = codec.traffic_nbytes / problem.hardware.memory_bandwidth_bytes_per_s
    action = Encode(format, codec.nbytes, stash.leave, stash.back, seconds, seconds)
    return Decision(stash.storage, action, f"rounded to {format} after its last use in forward")


@dataclass(frozen=True)
class Footprint:
    """The peak of a step, and the peak of what is no weight: the two may lie at different instructions."""

    peak_nbytes: int
    maps_nbytes: int


def footprint(timeline: Timeline) -> Footprint:
    no_weights = [row for row, role in enumerate(ROLES) if role not in WEIGHTS]
    maps = timeline.nbytes[timeline.device][no_weights].sum(axis=0)
    return Footprint(timeline.peak_nbytes, int(maps.max()))


def static_footprint(plan: Plan) -> Footprint:
    """By the paper's allocator."""
    held = holdings(plan, plan.program)
    rows = [row for row, tier in enumerate(held.tiers.tolist()) if tier == 0]
    blocks = [(int(held.nbytes[row]), int(held.first[row]), int(held.last[row])) for row in rows]
    is_weight = [ROLES[held.roles[row]] in WEIGHTS for row in rows]
    maps = [block for block, weight in zip(blocks, is_weight, strict=True) if not weight]
    return Footprint(groups_nbytes(blocks), groups_nbytes(maps))


def groups_nbytes(blocks: Iterable[tuple[int, int, int]]) -> int:
    """Blocks are (bytes, first, last), both ends included. The first member of a group is its largest."""
    groups: list[list[tuple[int, int, int]]] = []
    for block in sorted(blocks, reverse=True):
        home = next((group for group in groups if not _overlaps(block, group)), None)
        if home is None:
            groups.append([block])
        else:
            home.append(block)
    return sum(group[0][0] for group in groups)


def _overlaps(block: tuple[int, int, int], group: Sequence[tuple[int, int, int]]) -> bool:
    _, first, last = block
    return any(first <= other_last and other_first <= last for _, other_first, other_last in group)


def ratios(network: GistNetwork, found: Mapping[str, Footprint], what: str, plans: Sequence[str]) -> dict[str, float]:
    """keep-all's footprint over each plan's, and over that with the network's own format as "chosen"."""
    base = getattr(found[BASE], what)
    ratio_of = {name: base / getattr(found[name], what) for name in plans}
    return ratio_of | {"chosen": ratio_of[f"gist-{network.format}"]}
