"""What a codec is: a shorter form of a storage that still holds what its later readers need.

Enters: a storage and the codec's parameters. Leaves: how many bytes the encoding takes, what it costs, and functions
that write the encoding and the storage again. The one idea: a codec is bound to one storage and works on its flat
bytes, element by element, so views, strides and memory formats are none of its business.

Nothing here imports torch. `Flat` is a flat array of bytes: numpy's on the CPU, a tensor on an accelerator; the kernels
that are handed in belong to whichever it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from vdnn.codecs.kernels.chunk_sizes import workspace_nbytes
from vdnn.ir import NO_USE, Detail, Information, Storage
from vdnn.units import NBYTES_PER_ELEMENT

Flat = Any
Kernels = Any
"""A module of `codecs/kernels`: same functions, different memory."""

Needed = Any
"""A number of bytes: an `int`, or on an accelerator a tensor of one number that the device has or will have. Arithmetic
with it waits for nobody, a comparison in an `if` does."""

ELEMENT_NBYTES = {
    dtype: NBYTES_PER_ELEMENT[dtype]
    for dtype in ("float32", "float64", "float16", "bfloat16", "bool", "uint8", "int32", "int64")
}
"""The dtypes that codecs know. A storage of any other is kept, offloaded or recomputed, never encoded."""


@dataclass(frozen=True)
class Codec(ABC):
    """One encoding of one storage. `detail` holds its parameters, as a plan writes them down."""

    storage: Storage
    detail: Detail = ()

    is_exact: ClassVar[bool] = True
    """Whether what is served is served bit for bit."""

    has_fixed_size: ClassVar[bool] = True
    """Whether every content fits `nbytes`. Else `nbytes` is a bound that data can exceed."""

    @property
    def count(self) -> int:
        return self.storage.nbytes // ELEMENT_NBYTES[self.storage.dtype]

    @property
    @abstractmethod
    def is_possible(self) -> bool:
        """Whether this storage can be encoded so at all."""

    @abstractmethod
    def serves(self, wanted: Information) -> bool:
        """Whether a reader that takes `wanted` gets it from the encoding, or from what is decoded."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of the encoding, or the bound that is planned for it."""

    @property
    def traffic_nbytes(self) -> int:
        """Bytes that an encoder or a decoder reads and writes, from which its time is estimated."""
        return self.storage.nbytes + self.nbytes

    @property
    def workspace_nbytes(self) -> int:
        """What kernels in torch ops hold for themselves at most while they encode or decode; others hold nothing."""
        return workspace_nbytes(self.count)

    @property
    def reader_workspace_nbytes(self) -> int:
        """The same while an op reads the encoding as it is."""
        return self.workspace_nbytes

    @abstractmethod
    def encode(self, source: Flat, encoding: Flat, kernels: Kernels) -> Needed:
        """Write the encoding; the bytes it needs. More than there are: the encoding is unusable."""

    @abstractmethod
    def decode(self, encoding: Flat, target: Flat, kernels: Kernels) -> None: ...


class Rounding(Codec):
    """A codec that holds its values in a shorter format, which its class names: `class Fp8(Reduced, format="fp8")`."""

    is_exact: ClassVar[bool] = False
    format: ClassVar[str]

    def __init_subclass__(cls, *, format: str = "", **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if format:
            cls.format = format


def is_whole_elements(storage: Storage) -> bool:
    """Whether the storage is a run of elements of a dtype we know."""
    return storage.dtype in ELEMENT_NBYTES and storage.nbytes % ELEMENT_NBYTES[storage.dtype] == 0


def needs_nothing(wanted: Information) -> bool:
    return wanted.need in NO_USE


def typed(raw: Flat, dtype: str) -> Flat:
    """Raw bytes as elements: `float32`, `int64`, ..."""
    if type(raw).__module__.split(".")[0] == "numpy":
        return raw.view(dtype)
    import torch

    return raw.view(getattr(torch, dtype))


def rounded_up(nbytes: int, to: int = 8) -> int:
    """Sections of an encoding start on whole words."""
    return -(-nbytes // to) * to
