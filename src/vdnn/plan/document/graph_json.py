"""A graph as JSON, and back.

Enters: a graph, or the document of one. Leaves: plain JSON types, or an equal graph. The one idea: tables. Each kind of
thing is a list of rows whose columns are named once, and words that repeat (targets, modules, dtypes) are numbers into
one list, so that a step of 70 000 ops stays at a few megabytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from vdnn.ir import Graph, Need, Op, Phase, Read, Role, Storage, Trait, Value

Json = dict[str, Any]


class Words:
    """Strings that repeat, numbered in the order of their first use."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, word: str) -> int:
        return self._numbers.setdefault(word, len(self._numbers))

    def known(self) -> list[str]:
        return list(self._numbers)


def table(columns: Sequence[str], rows: Any) -> Json:
    return {"columns": list(columns), "rows": list(rows)}


def graph_to_json(graph: Graph, words: Words) -> Json:
    number = words.number
    ops = (
        [
            op.name,
            number(op.target),
            number(op.phase),
            number(op.module),
            [part for read in op.reads for part in (read.value, number(read.need))],
            list(op.writes),
            op.flops,
            [number(trait) for trait in sorted(op.traits)],  # a set's own order differs from process to process
        ]
        for op in graph.ops
    )
    values = ([value.name, value.storage, list(value.shape), number(value.dtype)] for value in graph.values)
    storages = ([s.name, s.nbytes, number(s.role), number(s.dtype), list(s.values)] for s in graph.storages)
    document = {
        "name": graph.name,
        "ops": table(
            ("name", "target", "phase", "module", "reads: value, need, ...", "writes", "flops", "traits"), ops
        ),
        "values": table(("name", "storage", "shape", "dtype"), values),
        "storages": table(("name", "nbytes", "role", "dtype", "values"), storages),
        "inputs": list(graph.inputs),
        "tangents": list(graph.tangents),
        "held": list(graph.held),
    }
    # Written only where there are some, as most reads take everything and most storages hold anything.
    exact_reads = [
        [moment, position, list(read.detail), read.reads_encoded]
        for moment, op in enumerate(graph.ops)
        for position, read in enumerate(op.reads)
        if read.detail or read.reads_encoded
    ]
    alphabets = [[position, list(s.alphabet)] for position, s in enumerate(graph.storages) if s.alphabet]
    return (
        document
        | ({"exact_reads": exact_reads} if exact_reads else {})
        | ({"alphabets": alphabets} if alphabets else {})
    )


def graph_from_json(document: Json, word: Callable[[int], str]) -> Graph:
    alphabets = {position: tuple(numbers) for position, numbers in document.get("alphabets", ())}
    exact = {
        (moment, position): (tuple(detail), encoded)
        for moment, position, detail, encoded in document.get("exact_reads", ())
    }
    ops = (
        Op(
            name=name,
            target=word(target),
            phase=Phase(word(phase)),
            module=word(module),
            reads=tuple(
                Read(value, Need(word(need)), *exact.get((moment, position), ()))
                for position, (value, need) in enumerate(zip(reads[::2], reads[1::2], strict=True))
            ),
            writes=tuple(writes),
            flops=flops,
            traits=frozenset(Trait(word(trait)) for trait in traits),
        )
        for moment, (name, target, phase, module, reads, writes, flops, traits) in enumerate(document["ops"]["rows"])
    )
    values = (
        Value(name, storage, tuple(shape), word(dtype)) for name, storage, shape, dtype in document["values"]["rows"]
    )
    storages = (
        Storage(name, nbytes, Role(word(role)), word(dtype), tuple(aliases), alphabets.get(position, ()))
        for position, (name, nbytes, role, dtype, aliases) in enumerate(document["storages"]["rows"])
    )
    inputs, tangents, held = (tuple(document[group]) for group in ("inputs", "tangents", "held"))
    return Graph(document["name"], tuple(ops), tuple(values), tuple(storages), inputs, tangents, held)
