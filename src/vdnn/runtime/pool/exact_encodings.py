"""Which exact and cheap encoding a storage has, found out from its bytes.

Enters: the flat bytes of a storage and the dtype they are read as. Leaves: a lossless codec bound to it, or None. In
eager mode nobody has planned what backward needs of a tensor, so an encoding must give back every bit: one bit per
boolean, or the elements with any bit set and where they are (Gist, ISCA 2018, section 3: sparse storage, dense
compute).
"""

from __future__ import annotations

import torch

from vdnn.codecs import Codec, codec_for
from vdnn.codecs.bool_mask import detail_of_alphabet
from vdnn.ir import Role, Storage
from vdnn.torch_private import without_torch_dispatch

SAMPLES = 4096  # elements looked at; the standard error of a share is then below 0.8 %
DENSITY_MARGIN = 0.04  # five standard errors: an encoding that does not fit was written for nothing
MAX_DENSITY = 0.6  # of what a sparse encoding saves a third: less is not worth two passes over the data
FLOAT_NAMES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}
_SAMPLED_AS = {4: torch.int32, 2: torch.int16}  # bits count, not values: a negative zero is kept


def exact_codec(flat: torch.Tensor, dtype: torch.dtype) -> Codec | None:
    with without_torch_dispatch():
        if dtype is torch.bool:
            return _bits(flat)
        return _sparse(flat, FLOAT_NAMES[dtype]) if dtype in FLOAT_NAMES else None


def _bits(flat: torch.Tensor) -> Codec | None:
    """A boolean is a byte of 0 or 1, unless somebody reinterpreted other bytes as booleans."""
    if flat.numel() == 0 or int(flat.max()) > 1:
        return None
    storage = Storage("saved", flat.numel(), Role.FEATURE_MAP, "bool", (), alphabet=(0.0, 1.0))
    return codec_for("bool-mask", storage, detail_of_alphabet(storage))


def _sparse(flat: torch.Tensor, dtype: str) -> Codec | None:
    width = 4 if dtype == "float32" else 2
    if flat.numel() % width:
        return None
    density = _sampled_density(flat.view(_SAMPLED_AS[width])) + DENSITY_MARGIN
    if density > MAX_DENSITY:
        return None
    codec = codec_for("sparse", Storage("saved", flat.numel(), Role.FEATURE_MAP, dtype, ()), (density,))
    return codec if codec.is_possible and codec.nbytes < flat.numel() else None


def _sampled_density(elements: torch.Tensor) -> float:
    sample = elements[:: max(1, elements.numel() // SAMPLES)]
    return int(sample.count_nonzero()) / max(1, sample.numel())
