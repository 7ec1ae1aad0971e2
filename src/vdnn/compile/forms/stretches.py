"""Which ops run in parts together, and in what order everything runs then.

Enters: an analysis, and the ops that are chosen to run in parts. Leaves: a program: whole ops, and stretches of ops
that run one after the other on the first part of the batch, then on the second, and so on. The one idea: a stretch is
as long as dependencies allow. A whole op that does not depend on the open stretch runs before it; one that does waits
until it is closed; a chosen op that needs something whole from either closes it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from torch import fx

from vdnn.capture.nodes import is_getitem, tensor_of
from vdnn.capture.ops.traits import traits_of
from vdnn.compile.forms.analysis import Analysis
from vdnn.ir import Trait

_IN_ORDER = frozenset({Trait.RANDOM, Trait.UPDATES, Trait.COLLECTIVE, Trait.MUST_KEEP})
"""Ops that have to run in the order they were traced in: draws from one generator, effects outside the graph."""


@dataclass(frozen=True)
class Stretch:
    """Ops that all run on one part of the batch before any runs on the next."""

    ops: tuple[fx.Node, ...]


PartsProgram = list[fx.Node | Stretch]


@dataclass
class ChosenOps:
    """An analysis, and the ops of it that run in parts."""

    analysis: Analysis
    chosen: Collection[fx.Node]

    def __post_init__(self) -> None:
        self._in_parts: dict[fx.Node, bool] = {}

    def in_parts(self, node: fx.Node) -> bool:
        """Whether the value exists in parts: its op runs so, or it is a view of one that does."""
        if node not in self._in_parts:
            self._in_parts[node] = self._is_in_parts(node)
        return self._in_parts[node]

    def _is_in_parts(self, node: fx.Node) -> bool:
        op = producer(node)
        if node in self.analysis.views:
            split = self.analysis.splits.get(op)
            return split is not None and all(map(self.in_parts, split.takes))
        return op in self.chosen and not self.analysis.is_summed(node)

    def read_whole(self, op: fx.Node) -> Iterator[fx.Node]:
        """The arguments of which an op reads the whole, be it to take rows of it."""
        takes = self.analysis.splits[op].takes if op in self.chosen else {}
        yield from (source for source in op.all_input_nodes if source not in takes or not self.in_parts(source))

    def made_by(self, node: fx.Node) -> Iterator[fx.Node]:
        """The values, no views, that a node is or is a view of."""
        if node not in self.analysis.views:
            yield node
            return
        for source in producer(node).all_input_nodes:
            yield from self.made_by(source)


def producer(node: fx.Node) -> fx.Node:
    return node.all_input_nodes[0] if is_getitem(node) else node


def values_of(op: fx.Node) -> list[fx.Node]:
    """The tensors that an op makes, as nodes."""
    return [op] if tensor_of(op) is not None else [user for user in op.users if is_getitem(user)]


@dataclass
class _Scheduler:
    choice: ChosenOps
    program: PartsProgram = field(default_factory=list)
    open: dict[fx.Node, None] = field(default_factory=dict)
    waiting: dict[fx.Node, None] = field(default_factory=dict)

    def add(self, op: fx.Node) -> None:
        is_blocked = any(
            producer(made) in self.open or producer(made) in self.waiting
            for source in self.choice.read_whole(op)
            for made in self.choice.made_by(source)
        )
        if op in self.choice.chosen:
            if is_blocked:
                self.close()
            self.open[op] = None
        elif is_blocked or self._must_follow(op):
            self.waiting[op] = None
        else:
            self.program.append(op)

    def _must_follow(self, op: fx.Node) -> bool:
        if writes_input(op):  # after whoever reads it
            return bool(self.open)
        is_ordered = bool(_IN_ORDER & traits_of(op.target))
        return is_ordered and any(_IN_ORDER & traits_of(earlier.target) for earlier in self.waiting)

    def close(self) -> None:
        if self.open:
            self.program.append(Stretch(tuple(self.open)))
        self.program.extend(self.waiting)
        self.open, self.waiting = {}, {}


def writes_input(op: fx.Node) -> bool:
    return Trait.IN_PLACE in traits_of(op.target) and any(n.op == "placeholder" for n in op.all_input_nodes)


def schedule(choice: ChosenOps, *phases: Iterable[fx.Node]) -> PartsProgram:
    """The ops of each phase in turn. No stretch reaches from one into the next."""
    scheduler = _Scheduler(choice)
    for ops in phases:
        for op in ops:
            scheduler.add(op)
        scheduler.close()
    return scheduler.program


def read_by_whole_ops(choice: ChosenOps, program: PartsProgram) -> set[fx.Node]:
    """Values made in parts that somebody reads whole: whole ops, the caller, and views of other rows."""
    ops = [op for item in program for op in (item.ops if isinstance(item, Stretch) else (item,))]
    ops.append(choice.analysis.graph.output_node())
    read = (made for op in ops for source in choice.read_whole(op) for made in choice.made_by(source))
    return {node for node in read if choice.in_parts(node)}
