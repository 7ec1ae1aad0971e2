"""Are two graphs the same program, whatever their inputs are called and in which order they come?

Enters: the graph of a saved plan, and one that was captured now. Leaves: for every storage of the first its place in
the second, or sentences that say where they differ. The one idea: walk both op by op and let each op say which of
its values correspond. Capture as a whole and capture through Dynamo give the same ops in the same order over inputs
that are numbered and named differently, so positions of storages cannot be compared, only looked up.

What the caller keeps is not compared: whether a decision may stand is `validate.py`'s question.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import zip_longest

from vdnn.ir import Graph, Op, Value


@dataclass(slots=True)
class Match:
    """`storages` maps positions of one graph to positions of the other. It holds only where `differences` is empty."""

    storages: dict[int, int] = field(default_factory=dict)
    differences: list[str] = field(default_factory=list)


def match(saved: Graph, here: Graph) -> Match:
    """How the graph of a plan corresponds to the one that is here."""
    matching = _Matching(saved, here)
    for moment, (one, other) in enumerate(zip_longest(saved.ops, here.ops)):
        if one is None or other is None or _kind(one) != _kind(other):
            words = f"op {moment} is {_described(one)} in the plan and {_described(other)} here"
            matching.found.differences.append(words)
            break  # nothing after it can be compared
        matching.take(one, other)
    return matching.found


def _kind(op: Op) -> tuple[object, ...]:
    return op.target, op.phase, len(op.writes), tuple((read.need, read.detail, read.reads_encoded) for read in op.reads)


def _described(op: Op | None) -> str:
    if op is None:
        return "missing"
    return f"{op.phase} {op.target}" + (f" in {op.module!r}" if op.module else "")


class _Matching:
    """The correspondence while it is being found, value by value."""

    def __init__(self, saved: Graph, here: Graph) -> None:
        self.saved, self.here = saved, here
        self.found = Match()
        self.values: dict[int, int] = {}
        self.taken: set[int] = set()  # storages here that have their counterpart

    def take(self, one: Op, other: Op) -> None:
        """Two ops do the same to the same things."""
        for mine, theirs in zip(one.reads, other.reads, strict=True):
            self._bind(one, mine.value, theirs.value)
        for made, made_here in zip(one.writes, other.writes, strict=True):
            self._bind(one, made, made_here)

    def _bind(self, op: Op, value: int, counterpart: int) -> None:
        known = self.values.get(value)
        if known is None:
            self.values[value] = counterpart
            self._compare(self.saved.values[value], self.here.values[counterpart])
        elif known != counterpart:
            names = (self.here.values[known].name, self.here.values[counterpart].name)
            self._differs(f"{op.name!r} takes {names[0]!r} in the plan and {names[1]!r} here")

    def _compare(self, one: Value, other: Value) -> None:
        if (one.shape, one.dtype) != (other.shape, other.dtype):
            self._differs(f"{other.name!r} is {_typed(one)} in the plan and {_typed(other)} here")
        if self.found.storages.get(one.storage) == other.storage:
            return
        if one.storage in self.found.storages or other.storage in self.taken:
            self._differs(f"{other.name!r} shares memory with other values in the plan than here")
        nbytes, nbytes_here = self.saved.storages[one.storage].nbytes, self.here.storages[other.storage].nbytes
        if one.shape == other.shape and nbytes != nbytes_here:
            self._differs(f"the storage of {other.name!r} has {nbytes} bytes in the plan and {nbytes_here} here")
        self.found.storages[one.storage] = other.storage
        self.taken.add(other.storage)

    def _differs(self, words: str) -> None:
        self.found.differences.append(words)


def _typed(value: Value) -> str:
    return f"{'x'.join(str(size) for size in value.shape) or 'a scalar of'} {value.dtype}"
