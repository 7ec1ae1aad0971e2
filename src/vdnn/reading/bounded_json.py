"""The one reader of JSON that was written elsewhere: within a number of bytes, brackets and levels, or not at all.

Enters: a path or bytes, and the most bytes that are read. Leaves: what the JSON says, in Python's types, or
`InvalidFile`. The one idea: look before parsing. Levels and brackets are counted on the bytes, without recursion, so
that neither a deep document ends in a crash of the parser nor a short one grows to a multiple of what was allowed; a
compressed file is inflated up to its bound and no further. What the fields hold is for `fields.py` to say.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import zlib
from pathlib import Path
from typing import Any, NoReturn

from vdnn.errors import InvalidFile
from vdnn.units import MiB, format_nbytes

MOST_LEVELS = 16  # a plan, the deepest document there is, has 7
MOST_BRACKETS = 2**23  # a plan of 70 000 ops has 1.2 million
MOST_DIGITS = 40  # of a number's whole part; more is refused before Python makes a number of it

# One that never ends is one too: no part of the text is looked at twice.
_STRING = re.compile(rb'"[^"\\]*+(?:\\(?:.|\Z)[^"\\]*+)*+(?:"|\Z)', re.DOTALL)
_LONG_NUMBER = re.compile(rb"\d{%d}" % (MOST_DIGITS + 1))
_NO_BRACKET = bytes(set(range(256)) - set(b"[]{}"))
_ALIKE = bytes.maketrans(b"{}", b"[]")  # whether they match is the parser's to find
_GZIP = 16 + zlib.MAX_WBITS


def json_in(path: str | Path, most_nbytes: int, *, is_compressed: bool = False) -> Any:
    """What the JSON in a file says. OSError where there is no such file or it may not be read."""
    body = _bytes_in(Path(path), most_nbytes)
    return parsed(inflated(body, most_nbytes) if is_compressed else body, most_nbytes)


def parsed(body: bytes, most_nbytes: int) -> Any:
    """What the JSON says."""
    if len(body) > most_nbytes:
        _refuse(f"it is larger than the {format_nbytes(most_nbytes)} that are read")
    bare = _STRING.sub(b"", body)
    if _LONG_NUMBER.search(bare):
        _refuse(f"it has a number of more than {MOST_DIGITS} digits")
    _require_shallow(bare.translate(_ALIKE, _NO_BRACKET))
    try:
        return json.loads(body.decode("utf-8"))
    except ValueError as broken:  # both not JSON and not UTF-8
        raise InvalidFile(f"it is not JSON: {broken}") from broken


def inflated(body: bytes, most_nbytes: int) -> bytes:
    """What a gzip file holds, up to a bound: the bytes that it claims to hold may be any number."""
    stream = zlib.decompressobj(_GZIP)
    try:
        plain = stream.decompress(body, most_nbytes + 1)
    except zlib.error as broken:
        raise InvalidFile(f"it is not compressed as it should be: {broken}") from broken
    if len(plain) > most_nbytes:
        _refuse(f"it holds more than the {format_nbytes(most_nbytes)} that are read")
    if not stream.eof or stream.unused_data:
        _refuse("its compressed part ends too early or too late")
    return plain


def _bytes_in(path: Path, most_nbytes: int) -> bytes:
    """Of an ordinary file: a pipe or a device has no end, or waits for one."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(found.st_mode):
            _refuse("it is no ordinary file")
        if found.st_size > most_nbytes:
            read = f"it has {format_nbytes(found.st_size)}, and at most {format_nbytes(most_nbytes)} are read"
            _refuse(read)
        return file.read(most_nbytes + 1)


def _require_shallow(brackets: bytes) -> None:
    """Take the innermost pairs away, as often as there may be levels: nothing is left."""
    if len(brackets) > 2 * MOST_BRACKETS:
        _refuse(f"it has more than {MOST_BRACKETS} lists and objects")
    for _ in range(MOST_LEVELS):
        if not brackets:
            return
        brackets = brackets.replace(b"[]", b"")
    if brackets:
        _refuse(f"its brackets do not match, or are nested deeper than {MOST_LEVELS} levels")


def _refuse(why: str) -> NoReturn:
    raise InvalidFile(why)


PLAN_NBYTES = 64 * MiB
"""The most bytes of a plan; one of 70 000 ops takes about 10 MiB."""
RECORD_NBYTES = 16 * MiB
"""The most bytes of a report, and of what is remembered of machines."""
