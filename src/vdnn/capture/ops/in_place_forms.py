"""Which ops may write their result over an input, and the form of each that does.

Enters: the table of ops (`known_ops/`). Leaves: for ops of a functional graph, the ops that compute the same bits into
memory that exists already. `capture/tidy/in_place.py` decides where; this file only knows that it is exact.

The one idea: an element may be overwritten once nothing that is still to be computed reads it. Three kinds of ops keep
to that. Elementwise ops read an element only for the result at its own position. Ops that change some elements of a
copy are eager's in-place op after a copy, and need no copy. Softmax and its kin read a whole row before they write any
of it.

Note: [Rows are read before they are written]
The CPU kernels of softmax, log-softmax and their backwards (ATen/native/cpu/SoftMaxKernel.cpp) handle one row, or one
block of columns, at a time: reduce over all of it, then map each element to its result. The map reads the position it
writes. Blocks share no element, so threads do not matter. This is known of the CPU's kernels only. They fill memory as
if it were contiguous, whatever strides they are told.

Left out on purpose: forms that PyTorch generates by calling the functional op and copying its result
(`hardswish_backward.out`, the backwards of BatchNorm and LayerNorm), which take more memory and not less.
`tests/cpu/test_in_place_forms.py` holds every entry to the bits of its functional form, and to allocating nothing.
"""

from __future__ import annotations

import torch

from vdnn.capture.ops.overloads import overload
from vdnn.known_ops import KNOWN_OPS
from vdnn.torch_private import OpOverload

IN_PLACE_OF: dict[OpOverload, OpOverload] = {
    overload(op.name, functional): overload(f"{op.name}_", in_place)
    for op in KNOWN_OPS.values()
    for functional, in_place in op.in_place.items()
}
"""Ops that may write over their first argument."""

OUT_OF: dict[OpOverload, tuple[OpOverload, str]] = {
    overload(op.name, functional): (overload(op.name, form.overload), form.argument)
    for op in KNOWN_OPS.values()
    for functional, form in op.out.items()
}
"""Ops that may write over any of their arguments, through their form with an output argument, and what it is called."""

PART_OF: dict[OpOverload, OpOverload] = {
    overload(op.name, "default"): overload(*op.replaces.split(".")) for op in KNOWN_OPS.values() if op.replaces
}
"""Ops that replace a part of their first argument, and the view that shows that part: eager's `y[:, 0] = x`."""

OVER_SECOND = frozenset(overload(op.name, "default") for op in KNOWN_OPS.values() if op.over_second)
"""`copy(y, x)` has the values of x and the layout of y. Where x is laid out so already, it is x."""

_ROW_BY_ROW = frozenset(overload(op.name, "default") for op in KNOWN_OPS.values() if op.row_by_row)
"""Note [Rows are read before they are written]."""


def is_known_exact(op: object, result: torch.Tensor) -> bool:
    """Whether the op's form was held to its bits for such a result. Elementwise kernels need no look at it."""
    return op not in _ROW_BY_ROW or (result.device.type == "cpu" and result.is_contiguous())
