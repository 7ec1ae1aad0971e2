"""How many bytes an element takes, by the name PyTorch prints for its dtype without the "torch." in front."""

from __future__ import annotations

from vdnn.errors import InvalidInput

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


def element_nbytes(dtype: str) -> int:
    """Bytes of one element; a name that is not in the table raises `InvalidInput` with those that are."""
    nbytes = NBYTES_PER_ELEMENT.get(dtype.removeprefix("torch."))
    if nbytes is None:
        raise InvalidInput(f"no dtype is called {dtype!r}. Known: {', '.join(NBYTES_PER_ELEMENT)}.")
    return nbytes
