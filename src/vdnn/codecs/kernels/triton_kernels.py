"""The codec kernels for accelerators, in Triton: the functions of reference.py over flat tensors.

Enters: flat contiguous tensors on one device; raw bytes are uint8 tensors that begin at a whole element. Leaves:
results in preallocated tensors, bit for bit those of reference.py, with one exception: a NaN that comes out of a
multiplication or an addition has the device's own bits, as in PyTorch's ops there. Kernels run on the device's current
stream. `pack_window`, `sparse_encode` and `csr_encode` wait for it once, because what they return or raise depends on
the data. `threads` is accepted everywhere and ignored.

Gist (Jain et al., ISCA 2018) is where the encodings come from.
"""

from __future__ import annotations

from vdnn.errors import Unsupported

try:
    from vdnn.codecs.kernels.triton_csr import csr_decode, csr_encode
    from vdnn.codecs.kernels.triton_floats import expand, reduce
    from vdnn.codecs.kernels.triton_masks import masked_gradient, pack_mask, unpack_mask
    from vdnn.codecs.kernels.triton_sparse import sparse_decode, sparse_encode
    from vdnn.codecs.kernels.triton_windows import pack_window, unpack_window, window_backward
except ModuleNotFoundError as error:
    if error.name != "triton":
        raise
    raise Unsupported(
        "encoding a tensor on an accelerator needs Triton, and this Python has none."
        " Install it with `pip install triton`, or plan without encodings."
    ) from error

__all__ = ["masked_gradient", "pack_mask", "pack_window", "unpack_mask", "unpack_window", "window_backward"]
__all__ += ["csr_decode", "csr_encode", "expand", "reduce", "sparse_decode", "sparse_encode"]
