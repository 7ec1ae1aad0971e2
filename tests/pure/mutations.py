"""Documents as strangers leave them: one to three places of a JSON document, or a few bytes of a file, changed at
random.

Enters: a document or bytes, and a generator of random numbers with a seed. Leaves: another one; what entered stays as
it was. The one idea: most changes are small and near the truth (a number more or less, a name of another field),
because what is far from it is refused by the first look, and few are monsters (deep, long, not finite).
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

DEEP = json.loads("[" * 200 + "]" * 200)
SCALARS: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    7,
    2**31,
    2**63,
    -(2**63),
    10**400,
    0.5,
    -0.25,
    1e308,
    -1e308,
    float("inf"),
    float("-inf"),
    float("nan"),
    "",
    "disk",
    "fp16",
    "keep",
    "\x1b[31m\u202e[bold]",
    "word " * 2000,
)
COLLECTIONS: tuple[Any, ...] = ([], {}, [[]], [None], [1, 2, 3], {"": 1}, {"kind": "keep"}, DEEP)

Place = tuple[Any, Any]
"""A list or object, and the position or key of one thing in it."""


def mutated(document: Any, chance: random.Random) -> Any:
    """The document with one change, or a few."""
    changed = {"document": copy.deepcopy(document)}
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        place = _place(changed, chance)
        if place is not None:
            chance.choice(_CHANGES)(*place, chance)
    return changed.get("document")


def damaged(body: bytes, chance: random.Random) -> bytes:
    """The bytes with a few of them changed, left out, put in or doubled."""
    changed = bytearray(body)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(changed) + 1)
        match chance.randrange(5):
            case 0:
                changed[at : at + 1] = bytes([chance.randrange(256)])
            case 1:
                del changed[at : at + chance.randint(1, 40)]
            case 2:
                changed[at:at] = chance.randbytes(chance.randint(1, 40))
            case 3:
                changed[at:at] = changed[at : at + chance.randint(1, 200)]
            case 4:
                del changed[at:]
    return bytes(changed)


def _place(document: Any, chance: random.Random) -> Place | None:
    """Down from the top, each time into one of what is there: fields of few stand beside tables of many."""
    inside, place = document, None
    while isinstance(inside, (dict, list)) and inside:
        key = chance.choice(list(inside)) if isinstance(inside, dict) else chance.randrange(len(inside))
        place = (inside, key)
        inside = inside[key]
        if place[0] is not document and chance.random() < 0.15:
            break
    return place


def _to_scalar(inside: Any, key: Any, chance: random.Random) -> None:
    inside[key] = copy.deepcopy(chance.choice(SCALARS))


def _to_collection(inside: Any, key: Any, chance: random.Random) -> None:
    inside[key] = copy.deepcopy(chance.choice(COLLECTIONS))


def _nudge(inside: Any, key: Any, chance: random.Random) -> None:
    value = inside[key]
    if isinstance(value, (int, float)):
        inside[key] = chance.choice((value + 1, value - 1, -value, value * 2, value // 2 if value == value else 0))
    elif isinstance(value, str):
        inside[key] = chance.choice((value + "x", value[1:], value.upper(), value[::-1]))
    elif isinstance(value, list):
        chance.shuffle(value)
    elif isinstance(value, dict) and value:
        value.pop(chance.choice(list(value)))


def _remove(inside: Any, key: Any, chance: random.Random) -> None:
    del inside[key]


def _double(inside: Any, key: Any, chance: random.Random) -> None:
    value = copy.deepcopy(inside[key])
    if isinstance(inside, list):
        inside.insert(chance.randrange(len(inside) + 1), value)
    else:
        inside[f"{key}{chance.choice(('x', ' ', ''))}"] = value


def _swap(inside: Any, key: Any, chance: random.Random) -> None:
    other = chance.choice(list(inside)) if isinstance(inside, dict) else chance.randrange(len(inside))
    inside[key], inside[other] = inside[other], inside[key]


def _wrap(inside: Any, key: Any, chance: random.Random) -> None:
    inside[key] = chance.choice(([inside[key]], {"value": inside[key]}, str(inside[key])[:100]))


_CHANGES: tuple[Callable[[Any, Any, random.Random], None], ...] = (
    _to_scalar,
    _to_collection,
    _nudge,
    _nudge,
    _nudge,
    _remove,
    _double,
    _swap,
    _swap,
    _wrap,
)


def many(count: int, seed: int) -> Iterator[random.Random]:
    """A generator for each of `count` trials: any of them can be run alone again."""
    return (random.Random(f"{seed} {number}") for number in range(count))
