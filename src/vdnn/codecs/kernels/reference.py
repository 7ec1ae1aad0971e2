"""The codec kernels in numpy: plain, obvious, and the definition the other implementations are tested against.

Enters: flat C-contiguous arrays in CPU memory. Leaves: results in preallocated arrays. Large arrays are gone through in
chunks, so temporaries stay within some MiB. `threads` is accepted everywhere and ignored: numpy works on one. This is
also what runs where the C extension was not built.
"""

from __future__ import annotations

from vdnn.codecs.kernels.reference_floats import expand, reduce
from vdnn.codecs.kernels.reference_masks import masked_gradient, pack_mask, unpack_mask
from vdnn.codecs.kernels.reference_sparse import csr_decode, csr_encode, sparse_decode, sparse_encode
from vdnn.codecs.kernels.reference_windows import pack_window, unpack_window, window_backward

__all__ = ["masked_gradient", "pack_mask", "pack_window", "unpack_mask", "unpack_window", "window_backward"]
__all__ += ["csr_decode", "csr_encode", "expand", "reduce", "sparse_decode", "sparse_encode"]
