"""Views, joins, paddings, and ops that read or write parts of a tensor."""

from __future__ import annotations

from vdnn.ir import Trait
from vdnn.known_ops.known_op import (
    IN_PLACE,
    Checkpoint,
    KernelStorage,
    KnownOp,
    Linear,
    LinearIfPut,
    Zeros,
    alike,
    same,
)

VIEWS = (
    KnownOp("view", chunks="view", linear=Linear.IN_ITS_TENSOR),
    KnownOp("_unsafe_view", traits=frozenset({Trait.VIEW}), chunks="view", linear=Linear.IN_ITS_TENSOR),
    KnownOp("permute", chunks="permute", linear=Linear.IN_ITS_TENSOR),
    *alike("t transpose", chunks="transpose", linear=Linear.IN_ITS_TENSOR),
    KnownOp("unsqueeze", chunks="unsqueeze", linear=Linear.IN_ITS_TENSOR),
    KnownOp("squeeze", chunks="squeeze", linear=Linear.IN_ITS_TENSOR),
    KnownOp("expand", chunks="expand", linear=Linear.IN_ITS_TENSOR),
    *alike("slice split split_with_sizes", chunks="part", linear=Linear.IN_ITS_TENSOR),
    *alike("select unbind", chunks="select", linear=Linear.IN_ITS_TENSOR),
    *alike("alias contiguous detach diagonal narrow reshape unfold", linear=Linear.IN_ITS_TENSOR),
    # Where a look lies in its storage is not known to a kernel, which is given addresses.
    KnownOp("as_strided", linear=Linear.IN_ITS_TENSOR, inductor_fuses=False),
)

JOINS = (
    KnownOp(
        "cat",
        chunks="concatenate",
        linear=Linear.JOIN,
        checkpoint=Checkpoint.ALWAYS,
        zeros=Zeros.WHERE_ALL_HAVE,
    ),
    KnownOp("stack", chunks="stack", linear=Linear.JOIN, checkpoint=Checkpoint.ALWAYS),
    KnownOp("repeat", chunks="repeat"),
    KnownOp("constant_pad_nd", chunks="pad", linear=Linear.PADDED),
)

PARTS = (
    *alike("index_select roll", linear=Linear.IN_ITS_TENSOR),
    KnownOp("slice_backward", chunks="slice_backward"),
    KnownOp("select_backward", chunks="select_backward"),
    KnownOp("slice_scatter", replaces="slice.Tensor", kernel_storage=KernelStorage.OF_WHOLE, chunks="put_part"),
    KnownOp("select_scatter", replaces="select.int", kernel_storage=KernelStorage.OF_WHOLE, chunks="put_part"),
    KnownOp("diagonal_scatter", replaces="diagonal.default", kernel_storage=KernelStorage.OF_WHOLE),
    KnownOp("as_strided_scatter", kernel_storage=KernelStorage.OF_WHOLE),
    KnownOp("col2im", kernel_storage=KernelStorage.OF_ELEMENTS),
    KnownOp("index_put", in_place=IN_PLACE, linear=LinearIfPut(2)),
    KnownOp("_unsafe_index_put", linear=LinearIfPut(2)),
    *alike("index_add scatter_add", in_place=IN_PLACE, linear=LinearIfPut(3)),
    KnownOp("index_copy", in_place=IN_PLACE),
    KnownOp("index_fill", in_place=same("int_Scalar", "int_Tensor")),
    KnownOp("scatter", in_place=same("src", "value")),
)

OPS = (*VIEWS, *JOINS, *PARTS)
