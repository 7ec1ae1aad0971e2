"""A walk through one training step under a plan, asking at every op: is what you read whole on the device now?

Enters: a plan whose positions exist and whose gaps do not overlap. Leaves: complaints, the device's peak and the peak
of each slower tier. Part of `validate.py`, and like it written the plain way and apart from the simulator: the peak is
found by liveness analysis backwards over the events of the walk, where the simulator goes forward over intervals. Two
roads to one number is the point.

What a storage holds is named by the moment of the op that last wrote it. A replay must read what the first run read: a
source that is there but was overwritten since is as bad as one that is away. And replays reach only what forward alone
wrote: a storage that backward overwrites is not made again, and nothing is made again from it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from vdnn.ir import NO_USE, PERSISTENT_ROLES, Need, Op, Read, Trait
from vdnn.plan.judge.events import Event, Key, codec_nbytes, key_nbytes, peak, reader_nbytes
from vdnn.plan.model.actions import Action, Drop, Encode, EncodeOffload, Keep, Offload, Recompute
from vdnn.plan.model.plan_data import PlanData

_NEVER_TWICE = (Trait.COLLECTIVE, Trait.MUST_KEEP)


@dataclass(slots=True)
class Seen:
    """What a walk has seen. `tier_peaks` maps a tier to (bytes, moment)."""

    complaints: list[str] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    tier_peaks: dict[str, tuple[int, int]] = field(default_factory=dict)
    peak_nbytes: int = 0
    peak_at: int = 0


def walk(plan: PlanData) -> Seen:
    walker = _Walker(plan)
    for moment in range(len(plan.problem.graph)):
        walker.take(moment)
    walker.seen.peak_nbytes, walker.seen.peak_at = peak(plan, walker.seen.events)
    return walker.seen


class _Walker:
    """The state of the device: `whole` storages, what each `holds`, and why the others are `away`."""

    def __init__(self, plan: PlanData) -> None:
        self.plan, self.graph = plan, plan.problem.graph
        self.seen = Seen()
        self.whole = {self.graph.values[value].storage for value in self.graph.inputs}
        self.holds = dict.fromkeys(range(len(self.graph.storages)), -1)
        self.away: dict[int, str] = {}
        self.gone: set[int] = set()  # decisions whose storage left before their moment ran
        self.encodings: dict[int, Key] = {}  # storage -> its encoding, where readers take that as it is
        self.first_reads: dict[int, dict[int, int]] = {}  # op -> storage -> what it held when the op first ran
        self.stored = {tier.name: 0 for tier in plan.problem.hardware.tiers}
        self.given = {self.graph.values[value].storage for value in (*self.graph.inputs, *self.graph.tangents)}
        self._index()

    def _index(self) -> None:
        """Who writes each storage, when each comes back, and which decisions are due at each moment."""
        self.written_at: defaultdict[int, list[int]] = defaultdict(list)
        for moment, op in enumerate(self.graph.ops):
            for storage in {self.graph.values[value].storage for value in op.writes}:
                self.written_at[storage].append(moment)
        self.overwritten: dict[int, int] = {}  # storage -> the backward op that first writes over what forward made
        for moment in range(self.graph.num_forward, len(self.graph)):
            for value in () if self.graph.ops[moment].has(Trait.VIEW) else self.graph.ops[moment].writes:
                storage = self.graph.values[value].storage
                if self.written_at[storage][0] < self.graph.num_forward:
                    self.overwritten.setdefault(storage, moment)
        self.backs: defaultdict[int, list[int]] = defaultdict(list)
        for decision in self.plan.decisions:
            if not isinstance(decision.action, Keep | Drop):
                self.backs[decision.storage].append(decision.action.back)
        self.due: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
        for position, decision in enumerate(self.plan.decisions):
            for word in ("leave", "sent", "fetch", "back"):
                if hasattr(decision.action, word):
                    self.due[word, getattr(decision.action, word)].append(position)
            if isinstance(decision.action, Offload | EncodeOffload):
                self.due["send", self._send_moment(position)].append(position)

    def take(self, moment: int) -> None:
        """One moment: fetch, bring back, run, send, give up."""
        if moment == min(self.graph.num_forward, len(self.graph) - 1):
            self._receive_tangents(moment)
        for position in self.due["fetch", moment]:
            key = self._traveller(position)
            self._event(moment, (key,), begins=(key,))
        self._bring_back(moment)
        self._run(moment)
        for position in self.due["send", moment]:
            self._store(moment, position)
        self._give_up(moment)

    def _receive_tangents(self, moment: int) -> None:
        fresh = {self.graph.values[value].storage for value in self.graph.tangents} - self.whole
        self.whole |= fresh
        self._event(moment, _plain(fresh), begins=_plain(fresh))

    def _bring_back(self, moment: int) -> None:
        coming = {self.plan.decisions[p].storage: p for p in self.due["back", moment]}
        wanted = {s for s, p in coming.items() if isinstance(self.plan.decisions[p].action, Recompute)}
        ops = sorted({op for storage in wanted for op in self._writers(storage, self._leave(coming[storage]))})
        for op in ops:
            for source in self._sources(op):
                if source in coming and source not in wanted:
                    self._restore(moment, coming.pop(source))
            self._replay(moment, op, wanted)
            for position in self._done_with(moment, op, ops, wanted):
                self._leave_now(moment, position)
        for storage, position in coming.items():
            if storage not in wanted:
                self._restore(moment, position)

    def _done_with(self, moment: int, op: int, ops: list[int], wanted: set[int]) -> list[int]:
        """What was replayed for other replays only, the last of which has run: it goes before the moment's own op."""
        used = {self.graph.values[r.value].storage for r in self.graph.ops[moment].reads if r.need not in NO_USE}
        done: list[int] = []
        for position in self.due["leave", moment]:
            storage, action = self.plan.decisions[position].storage, self.plan.decisions[position].action
            touching = [o for o in ops if storage in self._touched_by_replay(o)]
            if isinstance(action, Recompute | Drop) and storage in wanted and storage not in used and touching:
                done += [position] if touching[-1] == op else []
        return done

    def _touched_by_replay(self, op_moment: int) -> set[int]:
        op = self.graph.ops[op_moment]
        written = {self.graph.values[value].storage for value in op.writes}
        return ({*self._sources(op_moment)} | written) - self._statistics(op)

    def _leave_now(self, moment: int, position: int) -> None:
        storage, action = self.plan.decisions[position].storage, self.plan.decisions[position].action
        self._event(moment, (("plain", storage),))
        self.whole.remove(storage)
        self.away[storage] = f"which is away ({action.kind}): it leaves before op {moment} runs"
        self.gone.add(position)

    def _restore(self, moment: int, position: int) -> None:
        """A copy has arrived, or a decoder runs; or both."""
        decision = self.plan.decisions[position]
        plain, encoded = ("plain", decision.storage), ("encoded", position)
        if isinstance(decision.action, Offload | EncodeOffload):
            self._event(moment, (self._traveller(position),))
            self.stored[decision.action.tier] -= key_nbytes(self.plan, self._traveller(position))
        if isinstance(decision.action, Encode | EncodeOffload):
            if decision.action.direct:
                self.encodings[decision.storage] = encoded
                return
            self._event(moment, (plain, encoded), (plain,), codec_nbytes(self.plan, position))
        self.whole.add(decision.storage)
        self.away.pop(decision.storage, None)

    def _replay(self, moment: int, op_moment: int, wanted: set[int]) -> None:
        op = self.graph.ops[op_moment]
        for trait in _NEVER_TWICE:
            if op.has(trait):
                self._complain(f"op {moment} replays {op.name!r} ({op.target}), which may not run twice: {trait}")
        left_out = self._statistics(op)
        for read in op.reads:
            if self.graph.values[read.value].storage not in left_out:
                self._check_source(moment, op_moment, self.graph.values[read.value].storage, read.need)
        written = {self.graph.values[value].storage for value in op.writes} - left_out
        read_of = {self.graph.values[read.value].storage for read in op.reads if read.need not in NO_USE}
        self._check_not_overwritten(moment, op, (read_of | (written & wanted)) - left_out)
        touched = {storage for storage in self._sources(op_moment) if storage in self.whole} - left_out
        begins: list[int] = []
        passing_nbytes = self._workspace_nbytes(op_moment)
        for storage in written:
            if storage in wanted:
                if storage not in self.whole:
                    begins.append(storage)
                self.whole.add(storage)
                self.away.pop(storage, None)
                self.holds[storage] = self.holds[storage] if op.has(Trait.VIEW) else op_moment
            elif self._is_born(storage, op_moment):
                passing_nbytes += self.graph.storages[storage].nbytes
            elif not op.has(Trait.VIEW):
                self._complain_of_second_write(moment, op, storage)
        self._event(moment, _plain([*touched, *begins]), _plain(begins), passing_nbytes)

    def _run(self, moment: int) -> None:
        op = self.graph.ops[moment]
        encodings = [self._encoding_for(moment, read) for read in op.reads]
        self.first_reads[moment] = {storage: self.holds[storage] for storage in self._sources(moment)}
        touched = {storage for storage in self._sources(moment) if storage in self.whole}
        begins: set[int] = set()
        for storage in {self.graph.values[value].storage for value in op.writes}:
            if storage in self.away:
                self._complain(f"op {moment} {op.name!r} writes into {self._name(storage)}, {self._why(storage)}")
                continue
            if storage not in self.whole:
                begins.add(storage)
            self.whole.add(storage)
            touched.add(storage)
            self.holds[storage] = self.holds[storage] if op.has(Trait.VIEW) else moment
        if moment == min(self.graph.num_forward, len(self.graph) - 1):
            touched |= {self.graph.values[value].storage for value in self.graph.tangents} & self.whole
        touches = (*_plain(touched), *(encoding for encoding in encodings if encoding is not None))
        read_nbytes = [reader_nbytes(self.plan, encoding) for encoding in encodings if encoding is not None]
        self._event(moment, touches, _plain(begins), max([self._workspace_nbytes(moment), *read_nbytes]))

    def _encoding_for(self, moment: int, read: Read) -> Key | None:
        """The encoding that an op reads in place of the storage, if the plan says so; complaints if it can read
        neither."""
        storage = self.graph.values[read.value].storage
        if read.need in NO_USE or storage in self.whole:
            return None
        if storage in self.encodings and read.reads_encoded:
            return self.encodings[storage]
        how = "as an encoding, which it cannot" if storage in self.encodings else self._why(storage)
        self._complain(f"op {moment} {self.graph.ops[moment].name!r} reads {self._name(storage)} ({read.need}), {how}")
        return None

    def _give_up(self, moment: int) -> None:
        leaving = [position for position in self.due["leave", moment] if position not in self.gone]
        encoding = [p for p in leaving if isinstance(self.plan.decisions[p].action, Encode | EncodeOffload)]
        for position in (*(p for p in leaving if p not in encoding), *encoding):
            storage, action = self.plan.decisions[position].storage, self.plan.decisions[position].action
            if storage not in self.whole:
                self._complain(
                    f"{action.kind} of {self._name(storage)} after op {moment}: it is not on the device then"
                )
                continue
            keys: tuple[Key, ...] = (("plain", storage),)
            begins: tuple[Key, ...] = (("encoded", position),) if position in encoding else ()
            self._event(moment, keys + begins, begins, codec_nbytes(self.plan, position) if begins else 0)
            self.whole.remove(storage)
            until = "and does not come back" if isinstance(action, Drop) else f"back before op {_back(action)}"
            self.encodings.pop(storage, None)
            self.away[storage] = f"which is away ({action.kind}): it leaves after op {moment}, {until}"
        for position in self.due["sent", moment]:
            self._event(moment, (("encoded", position),))

    def _statistics(self, op: Op) -> set[int]:
        """What an op updates beside its results, which a replay neither reads nor updates."""
        written = {self.graph.values[value].storage for value in op.writes} if op.has(Trait.UPDATES) else set()
        return {storage for storage in written if self.graph.storages[storage].role in PERSISTENT_ROLES}

    def _check_source(self, moment: int, op_moment: int, storage: int, need: Need) -> None:
        op = self.graph.ops[op_moment]
        if need in NO_USE:
            return
        if storage not in self.whole:
            self._complain(f"op {moment} replays {op.name!r}, which reads {self._name(storage)}, {self._why(storage)}")
        elif self.holds[storage] != self.first_reads[op_moment][storage]:
            writer = self.graph.ops[self.holds[storage]].name
            self._complain(
                f"op {moment} replays {op.name!r}, which reads {self._name(storage)}, but {writer!r} overwrote it since"
            )

    def _check_not_overwritten(self, moment: int, op: Op, storages: set[int]) -> None:
        for storage in sorted(storages & self.overwritten.keys()):
            writer = self.graph.ops[self.overwritten[storage]].name
            self._complain(
                f"op {moment} replays {op.name!r}, which takes {self._name(storage)}: {writer!r} writes over it in"
                " backward, and replays reach only what forward alone wrote"
            )

    def _complain_of_second_write(self, moment: int, op: Op, storage: int) -> None:
        role = self.graph.storages[storage].role
        lasting = ", which outlives the step" if role in PERSISTENT_ROLES else ""
        self._complain(
            f"op {moment} replays {op.name!r}, which would change {self._name(storage)} ({role}) a second time{lasting}"
        )

    def _store(self, moment: int, position: int) -> None:
        action = self.plan.decisions[position].action
        assert isinstance(action, Offload | EncodeOffload), f"{action.kind} does not travel"
        self.stored[action.tier] += key_nbytes(self.plan, self._traveller(position))
        known = self.seen.tier_peaks.get(action.tier, (0, moment))
        self.seen.tier_peaks[action.tier] = max(known, (self.stored[action.tier], moment), key=lambda peak: peak[0])

    def _send_moment(self, position: int) -> int:
        """Where the copy out starts: right after the encoder, or once nothing writes the storage any more before it
        leaves.
        """
        decision = self.plan.decisions[position]
        leave = self._leave(position)
        if isinstance(decision.action, EncodeOffload):
            return leave
        written = [t for t in self._writers(decision.storage, leave) if not self.graph.ops[t].has(Trait.VIEW)]
        returned = [back for back in self.backs[decision.storage] if back <= leave]
        return max([0, *written, *returned])

    def _traveller(self, position: int) -> Key:
        """What a copy of this decision carries."""
        decision = self.plan.decisions[position]
        return ("encoded", position) if isinstance(decision.action, EncodeOffload) else ("plain", decision.storage)

    def _writers(self, storage: int, last: int) -> list[int]:
        return [moment for moment in self.written_at[storage] if moment <= last]

    def _sources(self, op_moment: int) -> list[int]:
        return [self.graph.values[read.value].storage for read in self.graph.ops[op_moment].reads]

    def _is_born(self, storage: int, op_moment: int) -> bool:
        return storage not in self.given and self.written_at[storage][0] == op_moment

    def _leave(self, position: int) -> int:
        action = self.plan.decisions[position].action
        assert not isinstance(action, Keep), "what is kept does not leave"
        return action.leave

    def _event(
        self, moment: int, touches: tuple[Key, ...], begins: tuple[Key, ...] = (), passing_nbytes: int = 0
    ) -> None:
        self.seen.events.append(Event(moment, touches, begins, passing_nbytes))

    def _complain(self, sentence: str) -> None:
        self.seen.complaints.append(sentence)

    def _workspace_nbytes(self, op_moment: int) -> int:
        problem = self.plan.problem
        if op_moment in self.plan.variants:
            return problem.variants[op_moment][self.plan.variants[op_moment]].workspace_nbytes
        return problem.costs[op_moment].workspace_nbytes

    def _name(self, storage: int) -> str:
        return repr(self.graph.storages[storage].name)

    def _why(self, storage: int) -> str:
        return self.away.get(storage, "which is not there yet")


def _plain(storages: Iterable[int]) -> tuple[Key, ...]:
    return tuple(("plain", storage) for storage in storages)


def _back(action: Action) -> int:
    assert not isinstance(action, Keep | Drop), f"{action.kind} has no way back"
    return action.back
