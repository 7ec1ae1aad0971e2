"""The codec kernels in plain torch ops, for devices that Triton does not know: the functions of reference.py.

Enters: flat contiguous tensors on one device of any kind; raw bytes are uint8 tensors that begin at a whole element.
Leaves: results in preallocated tensors, bit for bit those of reference.py, with one exception: a NaN that comes out of
a multiplication or an addition has the device's own bits, as in PyTorch's ops there. What `pack_window`,
`sparse_encode` and `csr_encode` return stays on the device, as a tensor of one number: nobody waits for it here.
`threads` is accepted everywhere and ignored. Their temporaries are the device's (`chunk_sizes.py`): they take room.
"""

from __future__ import annotations

from vdnn.codecs.kernels.chunk_sizes import workspace_nbytes
from vdnn.codecs.kernels.torch_floats import expand, reduce
from vdnn.codecs.kernels.torch_masks import masked_gradient, pack_mask, unpack_mask
from vdnn.codecs.kernels.torch_sparse import csr_decode, csr_encode, sparse_decode, sparse_encode
from vdnn.codecs.kernels.torch_windows import pack_window, unpack_window, window_backward

__all__ = ["masked_gradient", "pack_mask", "pack_window", "unpack_mask", "unpack_window", "window_backward"]
__all__ += ["csr_decode", "csr_encode", "expand", "reduce", "sparse_decode", "sparse_encode", "workspace_nbytes"]

TAKES_ROOM = True
