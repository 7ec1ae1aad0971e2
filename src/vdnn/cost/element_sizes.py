"""How many bytes an element takes, by the name PyTorch prints for its dtype without the "torch." in front."""

from __future__ import annotations

from vdnn.errors import InvalidInput
from vdnn.units import NBYTES_PER_ELEMENT


def element_nbytes(dtype: str) -> int:
    """Bytes of one element; a name that is not in the table raises `InvalidInput` with those that are."""
    nbytes = NBYTES_PER_ELEMENT.get(dtype.removeprefix("torch."))
    if nbytes is None:
        raise InvalidInput(f"no dtype is called {dtype!r}. Known: {', '.join(NBYTES_PER_ELEMENT)}.")
    return nbytes
