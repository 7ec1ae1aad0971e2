"""Where the samples of a batch lie in a tensor, and what a rule says of an op that may run on some of them.

Enters: one call of a traced graph with what is known of its arguments. Leaves: a `Split`, or `MixesSamples`. The one
idea: an op may run on a part of the batch if cutting its arguments and then running it gives the same as running it and
then cutting its results; a result that sums over samples is the sum of what the parts give.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any

import torch
from torch import fx

from vdnn.capture.nodes import arguments_of, tensor_of, tensors_of
from vdnn.torch_private import OpOverload


@dataclass(frozen=True, slots=True)
class Rows:
    """Along `dim`, sample i has the `per_sample` rows from i * per_sample on."""

    dim: int
    per_sample: int = 1

    def moved(self, dim: int) -> Rows:
        return Rows(dim, self.per_sample)

    def of(self, samples: int) -> int:
        return self.per_sample * samples


class Total(Enum):
    """A result without rows of samples: what the parts of the batch give is added up."""

    SUM = "sum"


Result = Rows | Total | None
"""Of each tensor that an op returns; None where it returns none."""


class MixesSamples(Exception):
    """The op, called so, does not run on a part of the batch."""


@dataclass(frozen=True)
class Split:
    """How an op runs on some samples: the rows it takes of its arguments (all others it takes whole), the sizes among
    its arguments that count rows, and what it returns."""

    results: tuple[Result, ...]
    takes: Mapping[fx.Node, Rows]
    sizes: Mapping[str, Rows]


class TracedCall:
    """One call, as rules look at it. `take` and `whole` say how an argument is read, or raise `MixesSamples`."""

    def __init__(self, node: fx.Node, known: Mapping[fx.Node, Rows], batch: int) -> None:
        assert isinstance(node.target, OpOverload), f"{node} has no schema, and so no rule"
        self.node, self.batch, self._known = node, batch, known
        self.arguments = arguments_of(node)
        self._takes: dict[fx.Node, Rows] = {}
        self._whole: set[fx.Node] = set()

    def __getitem__(self, name: str) -> Any:
        return self.arguments.get(name)

    @cached_property
    def sources(self) -> list[fx.Node]:
        """Its arguments that are tensors."""
        return [source for source in self.node.all_input_nodes if tensor_of(source) is not None]

    @cached_property
    def results(self) -> tuple[torch.Tensor | None, ...]:
        return tensors_of(self.node)

    @property
    def result(self) -> torch.Tensor:
        result = self.results[0]
        if result is None:
            raise MixesSamples
        return result

    def shape(self, source: fx.Node) -> tuple[int, ...]:
        tensor = tensor_of(source)
        if tensor is None:
            raise MixesSamples
        return tuple(tensor.shape)

    def known(self, source: Any) -> Rows | None:
        return self._known.get(source) if isinstance(source, fx.Node) else None

    def rows(self, name: str) -> Rows:
        """Of an argument without which there is nothing to cut."""
        return require(self.known(self[name]))

    def take(self, source: Any, rows: Rows) -> None:
        """The argument is read in rows. One that is whole so far is cut, if it has a row for everyone."""
        if not isinstance(source, fx.Node):
            return
        has_all = self.known(source) is None and self.shape(source)[rows.dim : rows.dim + 1] == (rows.of(self.batch),)
        if not (self.known(source) == rows or has_all):
            raise MixesSamples
        if source in self._whole or self._takes.setdefault(source, rows) != rows:
            raise MixesSamples

    def whole(self, *sources: Any) -> None:
        """The arguments are the same for all samples."""
        for source in sources:
            if isinstance(source, fx.Node):
                if self.known(source) is not None or source in self._takes:
                    raise MixesSamples
                self._whole.add(source)

    def broadcast(self, source: Any, rows: Rows, ndim: int) -> None:
        """The argument is stretched to `ndim` dims, one of which holds the rows."""
        if not isinstance(source, fx.Node):
            return
        shape = self.shape(source)
        dim = rows.dim - (ndim - len(shape))
        if dim < 0 or shape[dim] == 1:
            self.whole(source)
        else:
            self.take(source, rows.moved(dim))

    def split(self, *results: Result, sizes: Mapping[str, Rows] | None = None) -> Split:
        return Split(results, dict(self._takes), sizes or {})

    def all_results(self, rows: Rows, sizes: Mapping[str, Rows] | None = None) -> Split:
        """Every tensor it returns has the same rows."""
        return self.split(*(None if tensor is None else rows for tensor in self.results), sizes=sizes)


ChunkRule = Callable[[TracedCall], Split]

CHUNK_RULES: dict[str, ChunkRule] = {}
"""By the name under which the table of ops knows them. `rules_of_*.py` write them."""


def chunk_rule(rule: ChunkRule) -> ChunkRule:
    """A function that says how some calls run on a part of the batch. The table of ops knows it by its name."""
    CHUNK_RULES[rule.__name__] = rule
    return rule


def require(rows: Rows | None) -> Rows:
    if rows is None:
        raise MixesSamples
    return rows


def only(found: Iterator[Rows]) -> Rows:
    """What all agree on."""
    different = set(found)
    if len(different) != 1:
        raise MixesSamples
    return different.pop()


def dims_of(argument: Any, ndim: int) -> list[int]:
    """A dim, several, or all of them, counted from the front."""
    if argument is None or argument == []:
        return list(range(ndim))
    dims = argument if isinstance(argument, (list, tuple)) else [argument]
    return [dim % max(ndim, 1) for dim in dims]
