"""A choice for every gap, written out as a plan that holds.

Enters: candidates, one choice per item (0: keep, k: its k-th option), and the bytes that copies may borrow up to.
Leaves: a plan. The one idea: choices say what, positions follow. What is recomputed asks for what it is made from; a
source that is away returns at that moment instead of at its own next use, by whatever way was chosen for it, and stays;
what lives no longer is made again just for that op. Copies linger and return early as far as memory allows
(`plan/strategies/offload_windows.py`), and what is free at an op then buys the fastest way of computing it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from vdnn.plan.auto.candidates import OFFLOAD, RECOMPUTE, Candidates, Option
from vdnn.plan.model.actions import Decision, Drop, Encode, EncodeOffload, Offload, Recompute
from vdnn.plan.model.gaps import Gap, without
from vdnn.plan.model.tier_room import TierRoom
from vdnn.plan.plan import Plan
from vdnn.plan.shared.per_moment import largest_per_moment
from vdnn.plan.shared.workspaces import fitting_variants, smallest_variants
from vdnn.plan.strategies.offload_choice import GapChoice
from vdnn.plan.strategies.offload_windows import CopyWindow, windows

KEEP_CHOICE = 0
STRATEGY_NAME = "auto"

Choices = Sequence[int]


def compose(candidates: Candidates, choices: Choices, budget_nbytes: int) -> Plan:
    """The plan in which every gap is used as chosen. It may exceed the budget: that is for the caller to see."""
    returns = Returns(candidates, choices)
    copies = list(_copies(candidates, returns))
    still = tuple(_without_copies(candidates, returns))
    problem = replace(candidates.problem, budget_nbytes=budget_nbytes)
    plan = Plan(problem, STRATEGY_NAME, still, smallest_variants(problem))
    if copies:
        away = without(largest_per_moment(plan), [choice.gap for choice in copies])
        lent = windows(copies, away, budget_nbytes)
        plan = replace(plan, decisions=tuple(_with_copies(candidates, returns, still, lent)))
    return fitting_variants(plan) if problem.variants else plan


@dataclass
class Returns:
    """What is given up, and the moment before which each is back. `made_for` lists the moments at which storages that
    no longer live are made again; those in `lives_on` cannot be, and live until their last replay."""

    candidates: Candidates
    choices: Choices
    option_of: dict[int, Option] = field(default_factory=dict)
    back_of: dict[int, int] = field(default_factory=dict)
    made_for: dict[int, list[int]] = field(default_factory=dict)
    lives_on: set[int] = field(default_factory=set)
    _by_storage: dict[int, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        items = self.candidates.items
        for k, chosen in enumerate(self.choices):
            if chosen != KEEP_CHOICE:
                self.option_of[k] = items[k].options[chosen - 1]
                self._by_storage.setdefault(items[k].gap.storage, []).append(k)
        self._drop_what_follows_encodings()
        again = [k for k, option in self.option_of.items() if option.kind == RECOMPUTE]
        for k in sorted(again, key=lambda k: items[k].gap.until):
            if k not in self.back_of:
                self._bring(k, items[k].gap.until)

    @property
    def read_as_encoding(self) -> set[int]:
        """Storages whose encoding is read as it is: they do not come back, so there is nothing to give up later."""
        encoded = (k for k, option in self.option_of.items() if option.encoding is not None and option.encoding.direct)
        return {self.candidates.items[k].gap.storage for k in encoded}

    def _drop_what_follows_encodings(self) -> None:
        encoded = self.read_as_encoding
        for k, option in list(self.option_of.items()):
            gap = self.candidates.items[k].gap
            if gap.storage in encoded and option.encoding is None and gap.leave >= self._encoding_leaves(gap.storage):
                del self.option_of[k]

    def _encoding_leaves(self, storage: int) -> int:
        encoded = [k for k in self._by_storage[storage] if (option := self.option_of.get(k)) and option.encoding]
        return min(self.candidates.items[k].gap.leave for k in encoded)

    def back(self, k: int) -> int:
        return self.back_of.get(k, self.candidates.items[k].gap.until)

    def _bring(self, k: int, moment: int) -> None:
        """Item k is whole before a moment; what it is made from too, which in deep networks is a long chain."""
        self.back_of[k] = moment
        open_ = [self.candidates.items[k].gap.storage] if self.option_of[k].kind == RECOMPUTE else []
        while open_:
            asker = open_.pop()
            sources = sorted(self.candidates.replays.sources(asker) or ())
            lives_on = asker in self._from_living
            open_ += [source for source in sources if self._is_made_again(source, moment, lives_on)]

    @cached_property
    def _from_living(self) -> set[int]:
        """Storages whose recomputation has its sources live on."""
        items = self.candidates.items
        return {items[k].gap.storage for k, option in self.option_of.items() if option.lives_on}

    def _is_made_again(self, storage: int, moment: int, lives_on: bool) -> bool:
        """Ask for a storage at a moment. Whether it has to be made there for that, from sources of its own."""
        covering = None
        for k in self._by_storage.get(storage, ()):
            gap = self.candidates.items[k].gap
            if k in self.option_of and gap.leave < moment and not self.option_of[k].keeps_values:
                del self.option_of[k]  # its values are needed after all: it stays
            elif k in self.option_of and gap.leave < moment <= gap.until:
                covering = k
        if covering is not None:
            is_new = covering not in self.back_of
            self.back_of.setdefault(covering, moment)
            return is_new and self.option_of[covering].kind == RECOMPUTE
        if self.candidates.is_there(storage, moment):
            return False
        if lives_on or self.candidates.replays.sources(storage) is None:
            self.lives_on.add(storage)
            return False
        made = self.made_for.setdefault(storage, [])
        if made and made[-1] == moment:
            return False
        made.append(moment)
        return True


def _without_copies(candidates: Candidates, returns: Returns) -> Iterator[Decision]:
    """All decisions as if links did not exist: an encoding that is to travel stays."""
    not_dropped = returns.read_as_encoding | returns.lives_on | returns.made_for.keys()
    for gap in candidates.last_gaps:
        if gap.storage not in not_dropped:
            yield Decision(gap.storage, Drop(gap.leave), "nobody reads more than its shape from here on")
    for k, option in returns.option_of.items():
        gap, back = candidates.items[k].gap, returns.back(k)
        if option.kind == RECOMPUTE:
            yield Decision(gap.storage, Recompute(gap.leave, back), option.reason)
        elif option.encoding is not None:
            yield Decision(gap.storage, replace(option.encoding, back=back), option.reason)
    for storage, moments in returns.made_for.items():
        if storage in returns.lives_on:
            continue
        leave = _last_use(candidates, storage)
        for moment in moments:
            yield Decision(storage, Recompute(leave, moment), f"made again only for what op {moment} needs")
            leave = moment


def _last_use(candidates: Candidates, storage: int) -> int:
    """After which a storage is gone: dropped, or at the end of its life."""
    life = candidates.graph.lifetimes[storage]
    assert life is not None, "only what is used is made again"
    return min(life.end - 1, candidates.dropped.get(storage, life.end - 1))


def _copies(candidates: Candidates, returns: Returns) -> Iterator[GapChoice]:
    """What travels, with tiers that have room, the nearest for what is back soonest; what finds no room stays."""
    room = TierRoom(candidates.problem.hardware, len(candidates.graph))
    chosen = [(k, option) for k, option in returns.option_of.items() if option.tier is not None]
    for k, option in sorted(chosen, key=lambda pair: candidates.away_s(candidates.items[pair[0]].gap)):
        gap = _travelling(candidates.items[k].gap, option, returns.back(k))
        wanted = dict.fromkeys([option.tier or "", *candidates.tiers])
        tier = room.take(gap.nbytes, gap.final, gap.until, list(wanted)) if gap.until - gap.leave > 1 else None
        if tier is not None:
            yield GapChoice(gap, tier)


def _travelling(gap: Gap, option: Option, back: int) -> Gap:
    """The gap as its copy sees it: an encoding exists from where the storage leaves."""
    if option.encoding is None:
        return replace(gap, until=back)
    return replace(gap, until=back, nbytes=option.encoding.nbytes, final=gap.leave)


def _with_copies(
    candidates: Candidates, returns: Returns, still: tuple[Decision, ...], lent: Sequence[CopyWindow]
) -> Iterator[Decision]:
    """Encodings that travel in the place of those that stay; then plain copies, ordered by return: of copies back that
    start at one moment, the one that is used first goes first."""
    travelling = {(window.choice.gap.storage, window.choice.gap.until): window for window in lent}
    for decision in still:
        window = travelling.get((decision.storage, getattr(decision.action, "back", -1)))
        if window is not None and isinstance(decision.action, Encode):
            yield replace(decision, action=_sent_encoding(decision.action, window))
        else:
            yield decision
    plain = {
        (candidates.items[k].gap.storage, returns.back(k)): option
        for k, option in returns.option_of.items()
        if option.kind == OFFLOAD
    }
    for window in sorted(lent, key=lambda w: (w.choice.gap.until, w.leave)):
        gap = window.choice.gap
        if (gap.storage, gap.until) in plain:
            action = Offload(_tier(window), window.leave, window.fetch, gap.until)
            yield Decision(gap.storage, action, plain[gap.storage, gap.until].reason)


def _sent_encoding(encoding: Encode, window: CopyWindow) -> EncodeOffload:
    return EncodeOffload(
        encoding.codec, encoding.nbytes, _tier(window), encoding.leave, window.leave, window.fetch, encoding.back,
        encoding.encode_s, encoding.decode_s, encoding.detail, encoding.direct,
    )  # fmt: skip


def _tier(window: CopyWindow) -> str:
    assert window.choice.tier is not None, "what is copied has a tier"
    return window.choice.tier
