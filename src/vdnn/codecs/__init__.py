"""Codecs: shorter forms of a storage between two uses, one per file.

Enters: a name, a storage, parameters. Leaves: a `Codec`. Descriptions (what an encoding holds, how many bytes it takes)
need no torch and no kernels, so a planner can weigh them anywhere; `kernels/` does the work where the bytes are.
"""

from __future__ import annotations

from vdnn.codecs.bool_mask import BoolMask
from vdnn.codecs.codec import Codec
from vdnn.codecs.reduced import Bf16, Fp8, Fp10, Fp16
from vdnn.codecs.sign_mask import SignMask
from vdnn.codecs.sparse import CsrFp8, CsrFp16, Sparse, SparseBf16, SparseCsr, SparseFp8, SparseFp10, SparseFp16
from vdnn.codecs.window_index import WindowIndex
from vdnn.errors import InvalidInput
from vdnn.ir import Detail, Storage

CODECS: dict[str, type[Codec]] = {
    "sign-mask": SignMask,
    "bool-mask": BoolMask,
    "window-index": WindowIndex,
    "sparse": Sparse,
    "csr": SparseCsr,
    "fp16": Fp16,
    "bf16": Bf16,
    "fp10": Fp10,
    "fp8": Fp8,
    "sparse-fp16": SparseFp16,
    "sparse-bf16": SparseBf16,
    "sparse-fp10": SparseFp10,
    "sparse-fp8": SparseFp8,
    "csr-fp16": CsrFp16,
    "csr-fp8": CsrFp8,
}

LOSSY_FORMATS = ("fp16", "bf16", "fp10", "fp8")
"""What `lossy=` may name, from the most precise to the shortest."""


def codec_for(name: str, storage: Storage, detail: Detail = ()) -> Codec:
    """The named codec, bound to a storage."""
    if name not in CODECS:
        raise InvalidInput(f"there is no codec {name!r}. Choose one of: {', '.join(CODECS)}.")
    return CODECS[name](storage, detail)


__all__ = ["CODECS", "LOSSY_FORMATS", "Codec", "codec_for"]
