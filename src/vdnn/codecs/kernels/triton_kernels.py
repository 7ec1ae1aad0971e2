"""The codec kernels for accelerators, in Triton: the functions of reference.py over flat tensors.

Enters: flat contiguous tensors on one device; raw bytes are uint8 tensors that begin at a whole element. Leaves:
results in preallocated tensors, bit for bit those of reference.py, with one exception: a NaN that comes out of a
multiplication or an addition has the device's own bits, as in PyTorch's ops there. Kernels run on the device's current
stream, and nobody waits for it here: what `pack_window`, `sparse_encode` and `csr_encode` return stays on the device,
as a tensor of one number. `threads` is accepted everywhere and ignored.

Gist (Jain et al., ISCA 2018) is where the encodings come from.
"""

from __future__ import annotations

from vdnn.codecs.kernels.triton_csr import csr_decode, csr_encode
from vdnn.codecs.kernels.triton_floats import expand, reduce
from vdnn.codecs.kernels.triton_masks import masked_gradient, pack_mask, unpack_mask
from vdnn.codecs.kernels.triton_sparse import sparse_decode, sparse_encode
from vdnn.codecs.kernels.triton_windows import pack_window, unpack_window, window_backward

__all__ = ["masked_gradient", "pack_mask", "pack_window", "unpack_mask", "unpack_window", "window_backward"]
__all__ += ["csr_decode", "csr_encode", "expand", "reduce", "sparse_decode", "sparse_encode"]
