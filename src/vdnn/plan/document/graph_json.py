"""A graph as JSON, and back.

Enters: a graph, or the document of one. Leaves: plain JSON types, or an equal graph. The one idea: tables. Each kind of
thing is a list of rows whose columns are named once, and words that repeat (targets, modules, dtypes) are numbers into
one list, so that a step of 70 000 ops stays at a few megabytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from vdnn.ir import Detail, Graph, Need, Op, Phase, Read, Role, Storage, Trait, Value
from vdnn.reading.fields import Listed, Number, Record, Row, Table, Text, Truth, Whole, blamed, of, unfit

Json = dict[str, Any]

OP_COLUMNS = ("name", "target", "phase", "module", "reads: value, need, ...", "writes", "flops", "traits")
VALUE_COLUMNS = ("name", "storage", "shape", "dtype")
STORAGE_COLUMNS = ("name", "nbytes", "role", "dtype", "values")


class Words:
    """Strings that repeat, numbered in the order of their first use."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, word: str) -> int:
        return self._numbers.setdefault(word, len(self._numbers))

    def known(self) -> list[str]:
        return [str(word) for word in self._numbers]  # an enumeration's member is more than its word


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
        "ops": table(OP_COLUMNS, ops),
        "values": table(VALUE_COLUMNS, values),
        "storages": table(STORAGE_COLUMNS, storages),
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


class Word:
    """A number into the list of words, for one of those that mean something here: any, or the members of `among`."""

    def __init__(self, words: tuple[str, ...], among: type[StrEnum] | None = None) -> None:
        meanings = None if among is None else {member.value: member for member in among}
        self._known = {n: word if meanings is None else meanings.get(word) for n, word in enumerate(words)}
        self._expected = "the number of a word" if among is None else f"the number of a {among.__name__.lower()}"

    def read(self, value: Any, where: str) -> Any:
        meaning = self._known.get(value) if type(value) is int else None
        if meaning is None:
            unfit(where, self._expected, value)
        return meaning


@dataclass(frozen=True, slots=True)
class _Reads:
    """Values and what is taken of them, in turn."""

    need: Word

    def read(self, value: Any, where: str) -> list[tuple[int, Need]]:
        if type(value) is not list or len(value) % 2:
            unfit(where, "a list of pairs: value, need, ...", value)
        values, needs = Listed(Whole(0)).read(value[::2], where), Listed(self.need).read(value[1::2], where)
        return list(zip(values, needs, strict=True))


def graph_kind(words: tuple[str, ...]) -> Record:
    """What the document of a graph holds."""
    word, positions, position = Word(words), Listed(Whole(0)), Whole(0)
    reads, traits = _Reads(Word(words, Need)), Listed(Word(words, Trait))
    phase, role, name = Word(words, Phase), Word(words, Role), Text()
    ops = (name, word, phase, word, reads, positions, Whole(0), traits)
    exact_read = Row((position, position, of(Detail), Truth()))
    return Record(
        {
            "name": name,
            "ops": Table(dict(zip(OP_COLUMNS, ops, strict=True))),
            "values": Table(dict(zip(VALUE_COLUMNS, (name, position, positions, word), strict=True))),
            "storages": Table(dict(zip(STORAGE_COLUMNS, (name, Whole(0), role, word, positions), strict=True))),
            "inputs": positions,
            "tangents": positions,
            "held": positions,
        },
        {"exact_reads": Listed(exact_read), "alphabets": Listed(Row((position, Listed(Number()))))},
    )


def graph_from_json(document: Json) -> Graph:
    """The graph of a document that was read as `graph_kind` says."""
    alphabets = dict(document.get("alphabets", ()))
    exact = {
        (moment, position): (detail, encoded) for moment, position, detail, encoded in document.get("exact_reads", ())
    }
    ops = (
        Op(
            name=name,
            target=target,
            phase=phase,
            module=module,
            reads=tuple(
                Read(value, need, *exact.get((moment, position), ())) for position, (value, need) in enumerate(reads)
            ),
            writes=writes,
            flops=flops,
            traits=frozenset(traits),
        )
        for moment, (name, target, phase, module, reads, writes, flops, traits) in enumerate(document["ops"])
    )
    values = (Value(*row) for row in document["values"])
    storages = (Storage(*row, alphabets.get(i, ())) for i, row in enumerate(document["storages"]))  # type: ignore[call-arg]
    inputs, tangents, held = (document[group] for group in ("inputs", "tangents", "held"))
    with blamed("graph"):
        return Graph(document["name"], tuple(ops), tuple(values), tuple(storages), inputs, tangents, held)
