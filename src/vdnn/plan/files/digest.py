"""A graph as a few letters: equal graphs have equal ones, in every process.

Enters: a graph. Leaves: a hexadecimal SHA-256 over its ops, values and storages; its own name is left out, which counts
the pieces of a model. The one idea: hash columns, not things. A column of 70 000 words is one join and one update, so
a step of that many ops takes a few tenths of a second.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Iterator
from itertools import chain

from vdnn.ir import Graph, Trait

_BETWEEN = "\x1f"  # the unit separator, which no name has: no two columns of words join to the same text


def graph_digest(graph: Graph) -> str:
    """The same for graphs that differ in nothing but their name."""
    found = hashlib.sha256()
    for words in (*_words_of_ops(graph), *_words_of_values(graph)):
        found.update(_BETWEEN.join(words).encode() + b"\n")
    for numbers in _numbers(graph):
        column = array("q", numbers)
        found.update(len(column).to_bytes(8, "little") + column.tobytes())
    return found.hexdigest()


def _words_of_ops(graph: Graph) -> Iterator[Iterable[str]]:
    spelled: dict[frozenset[Trait], str] = {op.traits: ",".join(sorted(op.traits)) for op in graph.ops}
    reads = [read for op in graph.ops for read in op.reads]
    yield (op.name for op in graph.ops)
    yield (op.target for op in graph.ops)
    yield (op.phase for op in graph.ops)
    yield (op.module for op in graph.ops)
    yield (spelled[op.traits] for op in graph.ops)
    yield (str(op.flops) for op in graph.ops)  # they may not fit into 64 bits
    yield (read.need for read in reads)
    yield (f"{k} {r.detail} {r.reads_encoded}" for k, r in enumerate(reads) if r.detail or r.reads_encoded)


def _words_of_values(graph: Graph) -> Iterator[Iterable[str]]:
    yield (value.name for value in graph.values)
    yield (value.dtype for value in graph.values)
    yield (storage.name for storage in graph.storages)
    yield (storage.role for storage in graph.storages)
    yield (storage.dtype for storage in graph.storages)
    yield (f"{k} {storage.alphabet}" for k, storage in enumerate(graph.storages) if storage.alphabet)


def _numbers(graph: Graph) -> Iterator[Iterable[int]]:
    """Where rows have several numbers, their count stands in a column of its own."""
    yield (read.value for op in graph.ops for read in op.reads)
    yield (len(op.reads) for op in graph.ops)
    yield chain.from_iterable(op.writes for op in graph.ops)
    yield (len(op.writes) for op in graph.ops)
    yield (value.storage for value in graph.values)
    yield chain.from_iterable(value.shape for value in graph.values)
    yield (len(value.shape) for value in graph.values)
    yield (storage.nbytes for storage in graph.storages)
    yield from (graph.inputs, graph.tangents, graph.held)
