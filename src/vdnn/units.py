"""Bytes and seconds: what people type becomes a number, and a number becomes what people read.

Enters: "12GiB", "1.5 GB", 4096. Leaves: int bytes, or text such as "11.25 GiB" and "3.20 ms". The one idea: inside the
project a quantity is a plain number whose name carries its unit (`nbytes`, `seconds`); only this file knows the words.
How many bytes an element of each dtype takes is also here, for those who do not import torch.

A budget is said with its unit. A number alone that is smaller than any budget in use was meant in another unit, so it
is asked back; `Nbytes` is a number that has its unit in its type, for those who have counted.
"""

from __future__ import annotations

import re

from vdnn.errors import InvalidInput

KiB = 1024
MiB = 1024 * KiB
GiB = 1024 * MiB
TiB = 1024 * GiB

MOST_GIB = 2048  # of a budget that a person may mean; above it a number alone is taken for MiB

NBYTES_PER_ELEMENT = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "quint8": 1,
    "qint8": 1,
    "uint16": 2,
    "int16": 2,
    "float16": 2,
    "bfloat16": 2,
    "uint32": 4,
    "int32": 4,
    "qint32": 4,
    "float32": 4,
    "complex32": 4,
    "uint64": 8,
    "int64": 8,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
}
"""By the name PyTorch prints for a dtype, without the "torch." in front."""

_NBYTES_PER_UNIT = {
    "": 1,
    "b": 1,
    "kib": KiB,
    "mib": MiB,
    "gib": GiB,
    "tib": TiB,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
}
_AMOUNT = re.compile(r"\s*(?P<number>\d+(?:\.\d*)?|\.\d+)\s*(?P<unit>[a-zA-Z]*)\s*")


class Nbytes(int):
    """A number of bytes that somebody has counted: as a budget it is taken at its word, however small."""


def parse_budget(amount: int | str, *, or_share: bool = False) -> int:
    """The bytes of an amount that bounds something. One below 1 MiB without a unit is asked back."""
    nbytes = parse_nbytes(amount, or_share=or_share)
    if 0 < nbytes < MiB and not _has_unit(amount):
        meant = "GiB" if nbytes <= MOST_GIB else "MiB"
        raise InvalidInput(
            f"a budget of {amount!r} is {nbytes} bytes: did you mean {nbytes}{meant}? Write '{nbytes}{meant}', or"
            f" '{nbytes}B' for that many bytes."
        )
    return nbytes


def _has_unit(amount: int | str) -> bool:
    return isinstance(amount, Nbytes) or (isinstance(amount, str) and not amount.strip()[-1:].isdecimal())


def parse_nbytes(amount: int | str, *, or_share: bool = False) -> int:
    """`"12GiB"`, `"1.5 GB"` or a whole number, as bytes. Anything else raises InvalidInput that lists the units, and
    says what else would do where that is a share (`or_share`)."""
    share = "; or a share of what keeping everything takes, as in '45%'" if or_share else ""
    if isinstance(amount, bool) or not isinstance(amount, (int, str)):
        raise InvalidInput(
            f"an amount of memory is a whole number of bytes or text like '12GiB'{share}; not {amount!r}"
        )
    if isinstance(amount, int):
        if amount < 0:
            raise InvalidInput(f"an amount of memory cannot be negative: {amount}")
        return amount
    match = _AMOUNT.fullmatch(amount)
    if match is None or match["unit"].lower() not in _NBYTES_PER_UNIT:
        raise InvalidInput(
            f"cannot read {amount!r} as an amount of memory: write a number and a unit, as in '12GiB', '1.5 GB' or"
            f" '4096B'{share}. Units: B, KiB, MiB, GiB, TiB (powers of 1024), kB, MB, GB, TB (powers of 1000)."
        )
    return round(float(match["number"]) * _NBYTES_PER_UNIT[match["unit"].lower()])


def format_nbytes(nbytes: float) -> str:
    """Three significant places in the largest binary unit that fits: 0 B, 512 B, 1.50 KiB, 11.25 GiB."""
    sign = "-" if nbytes < 0 else ""
    size = abs(nbytes)
    if size < KiB:
        return f"{sign}{size:.0f} B"
    for unit, name in ((TiB, "TiB"), (GiB, "GiB"), (MiB, "MiB"), (KiB, "KiB")):
        if size >= unit:
            return f"{sign}{size / unit:.2f} {name}"
    raise AssertionError("unreachable: KiB is the smallest unit above")


def format_seconds(seconds: float) -> str:
    """A duration in the unit a person would pick: 1.25 s, 3.20 ms, 7.0 us."""
    size = abs(seconds)
    if size >= 1:
        return f"{seconds:.2f} s"
    if size >= 1e-3:
        return f"{seconds * 1e3:.2f} ms"
    return f"{seconds * 1e6:.1f} us"
