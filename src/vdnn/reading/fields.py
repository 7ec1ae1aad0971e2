"""What the fields of a document may hold, said once, and held against a document.

Enters: a document in JSON's types and a `Kind`, which is a description of it. Leaves: the same in the types that were
described, tuples for lists and classes for objects; or `InvalidFile` with the first field that holds something else.
The one idea: a description reads. Kinds of single values are small classes, kinds of many are made of those, and a
dataclass is its own description (`of`): its annotations say what its fields hold, its constructor what they must obey.

Numbers are finite and within bounds of their own, so that sums of them stay finite; text is as it may be shown
(`printable.py`).
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import cache
from math import isfinite
from typing import Any, NoReturn, Protocol, Union, get_args, get_origin, get_type_hints

from vdnn.errors import InvalidFile
from vdnn.printable import printable, printable_lines

LARGEST_WHOLE = 2**62  # sums of two fit into 64 bits
LARGEST_NUMBER = 1e30  # of FLOP/s, bytes, seconds; sums and products of two are finite
LONGEST_TEXT = 100_000  # letters; notes and reasons are sentences, names are paths


class Kind(Protocol):
    """What a field may hold."""

    def read(self, value: Any, where: str) -> Any:
        """The value as the program has it; InvalidFile that names `where`."""


def unfit(where: str, expected: str, value: Any) -> NoReturn:
    """`where` holds `value`, and should hold something that `expected` describes."""
    raise InvalidFile(f"{where or 'the document'} is {expected}, not {brief(value)}", field=where)


def brief(value: Any) -> str:
    """A value as a message quotes it, whatever it is."""
    if isinstance(value, (list, dict)):
        return "a list" if isinstance(value, list) else "an object"
    shown = printable(repr(value[:60]) if isinstance(value, str) else repr(value))
    return shown if len(shown) <= 60 else f"{shown[:60]}…"


@contextmanager
def blamed(where: str) -> Iterator[None]:
    """What a constructor refuses in here is the fault of this field."""
    try:
        yield
    except InvalidFile:
        raise
    except ValueError as broken:
        raise InvalidFile(f"{where or 'the document'} cannot be: {broken}", field=where) from broken


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number."""

    least: int = -LARGEST_WHOLE
    most: int = LARGEST_WHOLE

    def read(self, value: Any, where: str) -> int:
        if type(value) is not int or not self.least <= value <= self.most:
            unfit(where, f"a whole number from {self.least} to {self.most}", value)
        return value

    def holds_all(self, values: Sequence[Any]) -> bool:
        are_whole = bool(values) and set(map(type, values)) == {int}
        return are_whole and self.least <= min(values) and max(values) <= self.most


@dataclass(frozen=True, slots=True)
class Number:
    """A finite number."""

    least: float = -LARGEST_NUMBER
    most: float = LARGEST_NUMBER
    may_be_infinite: bool = False

    def read(self, value: Any, where: str) -> float:
        if type(value) not in (int, float) or not (
            self.least <= value <= self.most or (self.may_be_infinite and value == value and not isfinite(value))
        ):
            unfit(where, f"a number from {self.least:g} to {self.most:g}", value)
        return value


@dataclass(frozen=True, slots=True)
class Text:
    """A name, on one line; or sentences, on as many as they like."""

    has_lines: bool = False

    def read(self, value: Any, where: str) -> str:
        if type(value) is not str:
            unfit(where, "text", value)
        if len(value) > LONGEST_TEXT:
            unfit(where, f"text of at most {LONGEST_TEXT} letters", value)
        return printable_lines(value) if self.has_lines else printable(value)


@dataclass(frozen=True, slots=True)
class Truth:
    """True or false."""

    def read(self, value: Any, where: str) -> bool:
        if type(value) is not bool:
            unfit(where, "true or false", value)
        return value


@dataclass(frozen=True, slots=True)
class Exactly:
    """One value and no other."""

    only: Any

    def read(self, value: Any, where: str) -> Any:
        if type(value) is not type(self.only) or value != self.only:
            unfit(where, f"{self.only!r}", value)
        return value


@dataclass(frozen=True, slots=True)
class OneOf:
    """The name of one of these."""

    known: Mapping[str, Any]

    def read(self, value: Any, where: str) -> Any:
        if type(value) is not str or value not in self.known:
            unfit(where, f"one of {', '.join(map(repr, self.known))}", value)
        return self.known[value]


@dataclass(frozen=True, slots=True)
class Maybe:
    """Something, or null."""

    kind: Kind

    def read(self, value: Any, where: str) -> Any:
        return None if value is None else self.kind.read(value, where)


@dataclass(frozen=True, slots=True)
class Listed:
    """A list of things of one kind."""

    kind: Kind

    def read(self, value: Any, where: str) -> tuple[Any, ...]:
        if type(value) is not list:
            unfit(where, "a list", value)
        return tuple(_column(self.kind, value, lambda position: f"{where}[{position}]"))


@dataclass(frozen=True, slots=True)
class Row:
    """A list with a kind for each position; `optional` ones may be left out from the end."""

    kinds: tuple[Kind, ...]
    optional: tuple[Kind, ...] = ()

    def read(self, value: Any, where: str) -> tuple[Any, ...]:
        kinds, most = self.kinds + self.optional, len(self.kinds) + len(self.optional)
        if type(value) is not list or not len(self.kinds) <= len(value) <= most:
            words = str(most) if not self.optional else f"{len(self.kinds)} to {most}"
            unfit(where, f"a list of {words} things", value)
        return tuple(kind.read(part, f"{where}[{i}]") for i, (kind, part) in enumerate(zip(kinds, value, strict=False)))


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of one shape under columns with names. Read column by column: a step of 70 000 ops is a million cells."""

    columns: Mapping[str, Kind]

    def read(self, value: Any, where: str) -> list[tuple[Any, ...]]:
        table = Record({"columns": Exactly(list(self.columns)), "rows": _ANY_LIST}).read(value, where)
        rows, num = table["rows"], len(self.columns)
        for position, row in enumerate(rows):
            if type(row) is not list or len(row) != num:
                unfit(f"{where}.rows[{position}]", f"a list of {num} things", row)
        read = (
            _column(kind, [row[at] for row in rows], _cell(where, at)) for at, kind in enumerate(self.columns.values())
        )
        return list(zip(*read, strict=True))


@dataclass(frozen=True, slots=True)
class Record:
    """An object with these fields and no others. What an optional one holds when it is missing is not said here."""

    required: Mapping[str, Kind]
    optional: Mapping[str, Kind] = field(default_factory=dict)

    def read(self, value: Any, where: str) -> dict[str, Any]:
        if type(value) is not dict:
            unfit(where, "an object", value)
        kinds = {**self.required, **self.optional}
        for name in value:
            if name not in kinds:
                unfit(_inside(where, name), f"no field here; the fields are {', '.join(kinds)}", value[name])
        for name in self.required:
            if name not in value:
                raise InvalidFile(f"{_inside(where, name)} is missing", field=_inside(where, name))
        return {name: kinds[name].read(part, _inside(where, name)) for name, part in value.items()}


@dataclass(frozen=True, slots=True)
class ByName:
    """An object with any names, whose fields are of one kind."""

    kind: Kind

    def read(self, value: Any, where: str) -> dict[str, Any]:
        if type(value) is not dict:
            unfit(where, "an object", value)
        return {printable(name): self.kind.read(part, _inside(where, name)) for name, part in value.items()}


@dataclass(frozen=True, slots=True)
class Made:
    """What a class makes of a record, or of the positions of a row."""

    make: Callable[..., Any]
    kind: Record | Row

    def read(self, value: Any, where: str) -> Any:
        parts = self.kind.read(value, where)
        with blamed(where):
            return self.make(**parts) if isinstance(parts, dict) else self.make(*parts)


@dataclass(frozen=True, slots=True)
class _AnyList:
    def read(self, value: Any, where: str) -> list[Any]:
        if type(value) is not list:
            unfit(where, "a list", value)
        return value


_ANY_LIST = _AnyList()
_SIMPLE: dict[Any, Kind] = {
    int: Whole(0),
    float: Number(0),
    str: Text(),
    bool: Truth(),
    float | int: Number(may_be_infinite=True),  # the bounds of a test (`ir.Detail`) lie anywhere
}


def of(described: Any) -> Kind:
    """The kind that a type describes: `int` counts something and `float` measures it, from 0 on; a dataclass is an
    object with its fields, of which those with a default may be missing."""
    return _described(described)


@cache
def _described(described: Any) -> Kind:
    if described in _SIMPLE:
        return _SIMPLE[described]
    origin, inside = get_origin(described), get_args(described)
    if origin in (Union, types.UnionType):
        [kind] = (of(one) for one in inside if one is not type(None))
        return Maybe(kind) if type(None) in inside else kind
    if origin is tuple and inside[1:] == (...,):
        return Listed(of(inside[0]))
    if origin is tuple:
        return Row(tuple(of(one) for one in inside))
    if isinstance(origin, type) and issubclass(origin, Mapping) and inside[0] is str:
        return ByName(of(inside[1]))
    assert is_dataclass(described), f"no kind of field is known for {described}"
    return Made(described, _record_of(described))  # type: ignore[arg-type]


def row_of(described: type) -> Made:
    """A dataclass as a list of its fields, in their order."""
    kinds = _kinds_of(described)
    num_required = sum(not _has_default(one) for one in fields(described))
    parts = tuple(kinds.values())
    return Made(described, Row(parts[:num_required], parts[num_required:]))


def _record_of(described: type) -> Record:
    kinds = _kinds_of(described)
    optional = {one.name for one in fields(described) if _has_default(one)}
    required = {name: kind for name, kind in kinds.items() if name not in optional}
    return Record(required, {name: kinds[name] for name in kinds if name in optional})


def read_as(kind: Kind) -> Mapping[str, Kind]:
    """The metadata of a dataclass's field whose annotation does not say it all."""
    return {"kind": kind}


def _kinds_of(described: type) -> dict[str, Kind]:
    hints = get_type_hints(described)
    return {one.name: one.metadata.get("kind") or of(hints[one.name]) for one in fields(described)}


def _has_default(one: Any) -> bool:
    return one.default is not MISSING or one.default_factory is not MISSING


def _column(kind: Kind, values: Sequence[Any], where: Callable[[int], str]) -> Sequence[Any]:
    """All of one kind. Places get their names when something is wrong in one of them."""
    if isinstance(kind, Whole) and kind.holds_all(values):  # of which there are most
        return values
    try:
        return [kind.read(value, "") for value in values]
    except InvalidFile:
        return [kind.read(value, where(position)) for position, value in enumerate(values)]


def _cell(where: str, at: int) -> Callable[[int], str]:
    return lambda position: f"{where}.rows[{position}][{at}]"


def _inside(where: str, name: str) -> str:
    shown = printable(name[:60])
    return f"{where}.{shown}" if where else shown
