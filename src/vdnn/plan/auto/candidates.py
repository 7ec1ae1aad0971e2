"""What could be done with every storage while nobody uses it, what that saves, and what it costs.

Enters: a problem. Leaves: `Candidates`: one `GapOptions` per gap of a storage, with an `Option` for each mechanism that
can serve it. The one idea: keep, offload, encode, encode and offload, recompute are answers to the same question, so
they are priced in the same money: bytes held at each moment, seconds of compute, seconds of each link. Which papers
they come from no longer matters: vDNN's offload, SuperNeurons' recomputation and Gist's encodings stand in one list.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from vdnn.codecs import Codec, codec_for
from vdnn.cost.table import OpCost
from vdnn.hardware.device import Hardware
from vdnn.ir import Information, Need, Read, Trait
from vdnn.plan.judge.clock import both_ways
from vdnn.plan.model.actions import Encode
from vdnn.plan.model.bounds import smallest_costs
from vdnn.plan.model.gaps import Gap, NbytesArray, gaps, moment_nbytes, without
from vdnn.plan.model.problem import Problem
from vdnn.plan.model.replay import Replays
from vdnn.plan.model.stashes import Stash, stash_at, with_maps, with_zeros
from vdnn.plan.model.tier_room import slower_tiers
from vdnn.plan.strategies.gist import encoding_decision
from vdnn.units import format_nbytes, format_seconds

SMALL_GRAPH_OPS = 60
"""Graphs so small that also unlikely options are worth a look."""

MOST_REPLAYED = 40
"""Ops that one storage may take to be made again: more than a block has."""

OFFLOAD, ENCODE, ENCODE_OFFLOAD, RECOMPUTE = "offload", "encode", "encode-offload", "recompute"


@dataclass(frozen=True, slots=True)
class Option:
    """`held_nbytes` stay on the device through the gap; `seconds` of compute are added; the copies keep the links of
    the tier busy for `out_s` and `back_s`. `encoding` is how it is encoded, if it is. `passing_nbytes` exist only while
    it is made again. `keeps_values`: every bit comes back, so that something else can be made again from it.
    `lives_on`: what it is made from lives until then. `back`: where it is whole again, if that is not its next use.
    """

    kind: str
    reason: str
    seconds: float = 0.0
    held_nbytes: int = 0
    tier: str | None = None
    out_s: float = 0.0
    back_s: float = 0.0
    encoding: Encode | None = None
    passing_nbytes: int = 0
    keeps_values: bool = True
    lives_on: bool = False
    back: int = -1

    def end(self, gap: Gap) -> int:
        """The moment at which the storage is whole again: its next use, or `back`, if that is another."""
        return gap.until if self.back < 0 else self.back


@dataclass(frozen=True, slots=True)
class GapOptions:
    """A gap and what could be done in it, beside keeping the storage."""

    gap: Gap
    options: tuple[Option, ...]


class Candidates:
    """What every choice starts from. Workspaces are the smallest that each op can do with."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.lean = replace(problem, costs=smallest_costs(problem), budget_nbytes=None)
        self.graph = problem.graph
        self.replays = Replays(problem.graph)
        self.tiers = _worth_using(problem.hardware)
        seconds = [cost.seconds for cost in self.fastest_costs]
        self.elapsed_s = np.concatenate([[0.0], np.cumsum(seconds)])

    @cached_property
    def fastest_costs(self) -> list[OpCost]:
        offered = self.problem.variants
        return [
            min((cost, *offered.get(moment, ())), key=lambda c: c.seconds)
            for moment, cost in enumerate(self.problem.costs.ops)
        ]

    @cached_property
    def all_gaps(self) -> tuple[Gap, ...]:
        return gaps(self.graph)

    @cached_property
    def last_gaps(self) -> list[Gap]:
        """After the last use that takes more than a shape: dropping costs nothing."""
        return [gap for gap in self.all_gaps if gap.is_last]

    @cached_property
    def base(self) -> NbytesArray:
        """Bytes of every moment when everything that is used again is kept."""
        return without(moment_nbytes(self.graph, self.lean.costs), self.last_gaps)

    @cached_property
    def items(self) -> tuple[GapOptions, ...]:
        """Every gap in which something can be done, ordered by storage, then by moment."""
        main = self._main_gaps()
        found = (GapOptions(gap, tuple(self._options(gap, main.get(gap.storage) == gap))) for gap in self.all_gaps)
        return tuple(item for item in found if item.options and not item.gap.is_last)

    def _main_gaps(self) -> dict[int, Gap]:
        """Of each storage the gap in which it waits longest: there encodings and recomputation are worth a look."""
        main: dict[int, Gap] = {}
        for gap in self.all_gaps:
            if not gap.is_last and (gap.storage not in main or self.away_s(gap) > self.away_s(main[gap.storage])):
                main[gap.storage] = gap
        return main

    def away_s(self, gap: Gap) -> float:
        return float(self.elapsed_s[gap.until] - self.elapsed_s[gap.leave + 1])

    def _options(self, gap: Gap, is_main: bool) -> Iterator[Option]:
        if gap.is_last:
            return
        encoding = self._encoding(gap) if is_main else None
        for tier in self.tiers:
            yield self._offload(gap, tier, gap.nbytes, None)
        if encoding is not None:
            yield self._encode(gap, encoding)
            for tier in self.tiers[:1] if gap.until - gap.leave > 2 else ():
                yield self._offload(gap, tier, encoding.nbytes, encoding)
        yield from self._recompute(gap)

    def _offload(self, gap: Gap, tier: str, nbytes: int, encoding: Encode | None) -> Option:
        out_s, back_s = self.copies_s(nbytes, tier)
        drag_s = self.drag_s(nbytes, tier)
        reason = (
            f"next use {format_seconds(self.away_s(gap))} away, copies take {format_seconds(out_s)} out and"
            f" {format_seconds(back_s)} back"
        )
        if encoding is None:
            return Option(OFFLOAD, reason, drag_s, 0, tier, out_s, back_s)
        seconds = drag_s + encoding.encode_s + encoding.decode_s
        reason = f"as {format_nbytes(nbytes)} of {encoding.codec}; {reason}"
        passing, whole = self._codec_nbytes(gap, encoding), self._is_whole(gap, encoding)
        return Option(ENCODE_OFFLOAD, reason, seconds, 0, tier, out_s, back_s, encoding, passing, whole)

    def copies_s(self, nbytes: int, tier: str) -> tuple[float, float]:
        """Seconds out and back, link after link."""
        out, back = both_ways(self.problem.hardware, tier)
        return sum(link.seconds(nbytes) for link in out), sum(link.seconds(nbytes) for link in back)

    def drag_s(self, nbytes: int, tier: str) -> float:
        """What copies out and back take from compute, beside waiting."""
        out, back = both_ways(self.problem.hardware, tier)
        return sum(link.drag * link.seconds(nbytes) for link in (*out, *back))

    def _encoding(self, gap: Gap) -> Encode | None:
        decision = encoding_decision(self.problem, self._stash(gap))
        return decision.action if decision is not None and isinstance(decision.action, Encode) else None

    def _encode(self, gap: Gap, encoding: Encode) -> Option:
        reason = f"{format_nbytes(encoding.nbytes)} as {encoding.codec} instead of {format_nbytes(gap.nbytes)}"
        whole, life = self._is_whole(gap, encoding), self.graph.lifetimes[gap.storage]
        assert life is not None, "what has a gap is used"
        back = life.end if encoding.direct else -1  # what is read as an encoding never comes back
        seconds = encoding.encode_s + encoding.decode_s
        passing = self._codec_nbytes(gap, encoding)
        return Option(
            ENCODE,
            reason,
            seconds,
            encoding.nbytes,
            encoding=encoding,
            passing_nbytes=passing,
            keeps_values=whole,
            back=back,
        )

    def _codec_nbytes(self, gap: Gap, encoding: Encode) -> int:
        """What its decoder, or who reads it as it is, holds for itself. Before the gap the judge sees to it."""
        if not self.problem.codecs_take_room:
            return 0
        codec = self._codec(gap, encoding)
        return codec.reader_workspace_nbytes if encoding.direct else codec.workspace_nbytes

    def _codec(self, gap: Gap, encoding: Encode) -> Codec:
        return codec_for(encoding.codec, self.graph.storages[gap.storage], encoding.detail)

    def _is_whole(self, gap: Gap, encoding: Encode) -> bool:
        codec = self._codec(gap, encoding)
        return codec.is_exact and not encoding.direct and codec.serves(Information(Need.ALL))

    def _stash(self, gap: Gap) -> Stash:
        return stash_at(self.graph, gap.storage, gap.leave, gap.until, self._reads, self._zeros_and_maps)

    @cached_property
    def _reads(self) -> dict[int, list[tuple[int, Read]]]:
        reads: dict[int, list[tuple[int, Read]]] = {}
        for moment, op in enumerate(self.graph.ops):
            for read in (*op.reads, *(Read(value) for value in op.writes if not op.has(Trait.VIEW))):
                reads.setdefault(self.graph.values[read.value].storage, []).append((moment, read))
        return reads

    @cached_property
    def _zeros_and_maps(self) -> tuple[set[int], set[int]]:
        return with_zeros(self.graph), with_maps(self.graph)

    def _recompute(self, gap: Gap) -> Iterator[Option]:
        """From what lives at its next use, with all that no longer does made again too; or alone, if what it is made
        from may live on at less than its own bytes."""
        chain = self.chain(gap)
        if chain is None or self.replays.writers[gap.storage][-1] > gap.leave:
            return
        if len(self._ops(chain)) <= MOST_REPLAYED:
            yield self._remade(chain, gap, lives_on=False)
        beside = [s for s in self.replays.sources(gap.storage) or () if s in chain[1:]]
        if beside and self._may_live_on(beside, chain, gap):
            yield self._remade(chain[:1], gap, lives_on=True)

    def _may_live_on(self, sources: list[int], chain: tuple[int, ...], gap: Gap) -> bool:
        """Whether a storage's sources are small enough to stay for its sake: half of it; on small graphs, where
        everything is worth a look, what it and the rest of its chain take."""
        nbytes = sum(self.graph.storages[s].nbytes for s in sources)
        if len(self.graph) > SMALL_GRAPH_OPS:
            return nbytes < gap.nbytes // 2
        return nbytes < sum(self.graph.storages[s].nbytes for s in chain)

    def _ops(self, chain: tuple[int, ...]) -> list[int]:
        return sorted({moment for storage in chain for moment in self.replays.writers[storage]})

    def _remade(self, chain: tuple[int, ...], gap: Gap, *, lives_on: bool) -> Option:
        ops = self._ops(chain)
        seconds = sum(self.fastest_costs[moment].seconds for moment in ops)
        passing = sum(self.graph.storages[storage].nbytes for storage in chain if storage != gap.storage)
        workspace = max(self.lean.costs[moment].workspace_nbytes for moment in ops)
        names = ", ".join(dict.fromkeys(self.graph.ops[moment].name for moment in ops[:3]))
        reason = f"made again in {format_seconds(seconds)} by {names}{', ...' if len(ops) > 3 else ''}"
        return Option(RECOMPUTE, reason, seconds, passing_nbytes=max(passing, workspace), lives_on=lives_on)

    def chain(self, gap: Gap) -> tuple[int, ...] | None:
        """The storage and those that have to be made again with it because nothing keeps them so long; None: it cannot
        be. What cannot be made again itself lives on until it is read."""
        found: dict[int, None] = {}
        open_ = [gap.storage]
        while open_:
            storage = open_.pop()
            sources = self.replays.sources(storage)
            if storage in found or (sources is None and storage != gap.storage):
                continue
            if sources is None or len(found) > MOST_REPLAYED:
                return None
            found[storage] = None
            open_ += [source for source in sources if not self.is_there(source, gap.until)]
        return tuple(found)

    def is_there(self, storage: int, moment: int) -> bool:
        """Whether a storage that nobody gives up is on the device at a moment."""
        dropped = self.dropped.get(storage)
        life = self.graph.lifetimes[storage]
        return life is not None and moment in life and (dropped is None or moment <= dropped)

    @cached_property
    def dropped(self) -> dict[int, int]:
        """Of each storage that outlives its last real use: that use."""
        return {gap.storage: gap.leave for gap in self.last_gaps}

    def kept_sources(self, gap: Gap) -> frozenset[int]:
        """What a storage is made again from, beside what is made again with it."""
        chain = self.chain(gap) or ()
        sources = {source for storage in chain for source in self.replays.sources(storage) or ()}
        return frozenset(sources - set(chain))


def _worth_using(hardware: Hardware) -> tuple[str, ...]:
    """Slower tiers up to the first that nothing bounds: what lies behind it is only further away."""
    used: list[str] = []
    for name in slower_tiers(hardware):
        used.append(name)
        if hardware.tier(name).nbytes is None:
            break
    return tuple(used)
