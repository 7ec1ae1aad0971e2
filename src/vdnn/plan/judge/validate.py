"""Does a plan keep its promises? Every violation, in words.

Enters: a plan from anywhere: a strategy, a file, a colleague. Leaves: nothing but complaints. The one idea:
**distrust**. This file and `walk.py` share no code with the simulator, the scheduler or any strategy; the rules that
need no story stand here, and the rest comes out of walking through the step and asking at each op which storages are
whole on the device now.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TypeVar

from vdnn.codecs import CODECS, Codec, codec_for
from vdnn.errors import InvalidPlan
from vdnn.ir import PERSISTENT_ROLES, Read, Role
from vdnn.plan.judge.walk import walk
from vdnn.plan.model.actions import Action, Decision, Drop, Encode, EncodeOffload, Keep, Offload, Recompute
from vdnn.plan.model.plan_data import PlanData
from vdnn.units import format_nbytes

P = TypeVar("P", bound=PlanData)


def check(plan: P) -> P:
    """The plan itself, or InvalidPlan with every violation."""
    found = violations(plan)
    if found:
        raise InvalidPlan(found)
    return plan


def violations(plan: PlanData) -> list[str]:
    """Every rule that the plan breaks, each as a sentence with names and numbers. Empty: the plan holds."""
    astray = list(_astray(plan))
    if astray:  # the other rules would look up positions that do not exist
        return astray
    found = [*_not_movable(plan), *_no_such_tier(plan), *_codecs(plan), *_overlaps(plan)]
    if found:  # a walk would report the same mistakes again, as their consequences
        return found
    seen = walk(plan)
    return [
        *seen.complaints,
        *_overfull_tiers(plan, seen.tier_peaks),
        *_over_budget(plan, seen.peak_nbytes, seen.peak_at),
    ]


def _astray(plan: PlanData) -> Iterator[str]:
    """Decisions about storages, moments or alternatives that the problem does not have."""
    graph = plan.problem.graph
    for position, decision in enumerate(plan.decisions):
        if not 0 <= decision.storage < len(graph.storages):
            yield f"decision {position} is about storage {decision.storage}, but there are only {len(graph.storages)}"
            continue
        for word in ("leave", "sent", "fetch", "back"):
            moment = getattr(decision.action, word, None)
            if moment is not None and not 0 <= moment < len(graph):
                yield f"{_who(plan, decision)}: {word}={moment}, but the graph has ops 0 to {len(graph) - 1}"
    for moment, chosen in plan.variants.items():
        offered = len(plan.problem.variants.get(moment, ()))
        if not 0 <= chosen < offered:
            yield f"op {moment} takes alternative {chosen}, but the problem offers {offered} for it"


def _not_movable(plan: PlanData) -> Iterator[str]:
    """A plan moves what forward makes for backward, and feature maps; never what the caller holds or what outlives the
    step.
    """
    graph = plan.problem.graph
    held = {graph.values[value].storage for value in graph.held}
    given = {graph.values[value].storage for value in graph.inputs}
    stashed = set(graph.stashed)
    for decision in plan.decisions:
        storage = graph.storages[decision.storage]
        if isinstance(decision.action, Keep):
            continue
        if storage.role in PERSISTENT_ROLES or decision.storage in given:
            yield f"{_who(plan, decision)}: it outlives the step (role: {storage.role}), no plan moves it"
        elif decision.storage in held:
            yield f"{_who(plan, decision)}: the caller holds it to the end of the step"
        elif decision.storage not in stashed and storage.role is not Role.FEATURE_MAP:
            yield f"{_who(plan, decision)}: it is neither stashed for backward nor a feature map (role: {storage.role})"


def _no_such_tier(plan: PlanData) -> Iterator[str]:
    """Copies go to a slower tier, along links that exist in both directions."""
    hardware = plan.problem.hardware
    tiers = [tier.name for tier in hardware.tiers]
    links = {(link.source, link.target) for link in hardware.links}
    for decision in plan.decisions:
        if not isinstance(decision.action, Offload | EncodeOffload):
            continue
        if decision.action.tier not in tiers[1:]:
            known = ", ".join(tiers[1:]) or "none"
            yield f"{_who(plan, decision)}: no slower tier {decision.action.tier!r} on {hardware.name!r}, only: {known}"
            continue
        depth = tiers.index(decision.action.tier)
        for near, far in pairwise(tiers[: depth + 1]):
            for hop in ((near, far), (far, near)):
                if hop not in links:
                    yield f"{_who(plan, decision)}: {hardware.name!r} has no link {hop[0]}->{hop[1]}"


def _codecs(plan: PlanData) -> Iterator[str]:
    """An encoding is written by a codec that there is, into as many bytes as it takes, and rounds only where that is
    allowed.
    """
    readers = _readers(plan)
    for decision in plan.decisions:
        action = decision.action
        if not isinstance(action, Encode | EncodeOffload):
            continue
        who = _who(plan, decision)
        if action.codec not in CODECS:
            yield f"{who}: there is no codec {action.codec!r}, only: {', '.join(CODECS)}"
            continue
        codec = codec_for(action.codec, plan.problem.graph.storages[decision.storage], action.detail)
        if not codec.is_possible:
            yield f"{who}: codec {action.codec!r} with detail {action.detail} is not for {codec.storage.dtype} like it"
        elif action.nbytes < codec.nbytes:
            yield f"{who}: codec {action.codec!r} needs {codec.nbytes} bytes, the plan gives it {action.nbytes}"
        elif action.direct and not (codec.has_fixed_size and codec.is_exact):
            yield f"{who}: nobody reads codec {action.codec!r} as it is, it has to be decoded"
        elif not codec.is_exact and plan.problem.lossy is None:
            yield f"{who}: codec {action.codec!r} rounds values, and the problem allows no loss"
        else:
            yield from _unserved(plan, decision, codec, readers.get(decision.storage, []))


def _readers(plan: PlanData) -> dict[int, list[tuple[int, Read]]]:
    """Of each encoded storage: who reads it, and when."""
    graph = plan.problem.graph
    readers: dict[int, list[tuple[int, Read]]] = {
        d.storage: [] for d in plan.decisions if isinstance(d.action, Encode | EncodeOffload)
    }
    for moment, op in enumerate(graph.ops) if readers else ():
        for read in op.reads:
            if graph.values[read.value].storage in readers:
                readers[graph.values[read.value].storage].append((moment, read))
    return readers


def _unserved(plan: PlanData, decision: Decision, codec: Codec, readers: list[tuple[int, Read]]) -> Iterator[str]:
    """Readers that take more of a storage than a codec has kept. A replay makes it whole again."""
    action, ops = decision.action, plan.problem.graph.ops
    assert isinstance(action, Encode | EncodeOffload), f"{action.kind} has no codec"
    replays = [d.action for d in plan.decisions if d.storage == decision.storage and isinstance(d.action, Recompute)]
    until = min((replay.back for replay in replays if replay.back > action.back), default=len(ops))
    for moment, read in readers:
        if action.back <= moment < until and not codec.serves(read.information):
            yield (
                f"{_who(plan, decision)}: op {moment} {ops[moment].name!r} takes {read.need} {read.detail} of it, which"
                f" codec {action.codec!r} with detail {action.detail} does not keep"
            )


def _overlaps(plan: PlanData) -> Iterator[str]:
    """A storage that is away cannot leave."""
    by_storage: dict[int, list[Decision]] = {}
    for decision in plan.decisions:
        if not isinstance(decision.action, Keep):
            by_storage.setdefault(decision.storage, []).append(decision)
    for decisions in by_storage.values():
        gaps = sorted((*_gap(plan, decision.action), position) for position, decision in enumerate(decisions))
        latest = gaps[0]  # among those before: a gap overlaps one of them where it overlaps the one that ends last
        for gap in gaps[1:]:
            if gap[0] < latest[1]:
                words = f"after {latest[0]} to before {latest[1]}, and after {gap[0]} to before {gap[1]}"
                yield f"{_who(plan, decisions[latest[2]])}: two of its gaps overlap: {words}"
            latest = max(latest, gap, key=lambda one: one[1])


def _gap(plan: PlanData, action: Action) -> tuple[int, int]:
    assert not isinstance(action, Keep), "what is kept has no gap"
    if isinstance(action, Drop) or (isinstance(action, Encode | EncodeOffload) and action.direct):
        return action.leave, len(plan.problem.graph)
    return action.leave, action.back


def _overfull_tiers(plan: PlanData, tier_peaks: dict[str, tuple[int, int]]) -> Iterator[str]:
    for tier in plan.problem.hardware.tiers[1:]:
        peak_nbytes, moment = tier_peaks.get(tier.name, (0, 0))
        if tier.nbytes is not None and peak_nbytes > tier.nbytes:
            yield (
                f"tier {tier.name!r} has {format_nbytes(tier.nbytes)}, but holds {format_nbytes(peak_nbytes)}"
                f" at op {moment} ({peak_nbytes - tier.nbytes} bytes too many)"
            )


def _over_budget(plan: PlanData, peak_nbytes: int, moment: int) -> Iterator[str]:
    budget_nbytes = plan.problem.budget_nbytes
    if budget_nbytes is not None and peak_nbytes > budget_nbytes:
        yield (
            f"the budget is {format_nbytes(budget_nbytes)}, but op {moment} {plan.problem.graph.ops[moment].name!r}"
            f" needs {format_nbytes(peak_nbytes)} ({peak_nbytes - budget_nbytes} bytes too many)"
        )


def _who(plan: PlanData, decision: Decision) -> str:
    return f"{decision.action.kind} of {plan.problem.graph.storages[decision.storage].name!r}"
