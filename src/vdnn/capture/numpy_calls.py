"""Which calls of numpy a trace may make with torch's ops, so that no bit changes.

Enters: the name of a numpy function, method or operator that a model calls on arrays whose values are not known yet.
Leaves: whether torch's version has numpy's bits. Dynamo traces numpy through a rewrite in torch ops. Where numbers are
only moved, or rounded once as the standard says, both are the same. Elsewhere they are not: numpy has its own
exponential and adds in another order. There the graph breaks, and numpy computes. So does a name that is not here.
"""

from __future__ import annotations

MOVES = frozenset(
    """
    array asarray ascontiguousarray asanyarray copy astype view zeros ones empty full eye identity zeros_like
    ones_like empty_like full_like reshape transpose squeeze expand_dims concatenate stack hstack vstack split
    array_split broadcast_to swapaxes moveaxis ravel flatten repeat tile flip flipud fliplr roll take
    take_along_axis diag diagonal tril triu atleast_1d atleast_2d where nonzero fill tolist item any all shape
    ndim size __getitem__ __setitem__ getitem setitem
    """.split()  # noqa: SIM905
)

ROUNDS_ONCE = frozenset(
    """
    add sub subtract mul multiply truediv true_divide divide neg negative pos positive abs absolute fabs sqrt
    maximum minimum clip floor ceil trunc sign iadd isub imul itruediv eq ne lt le gt ge equal not_equal less
    less_equal greater greater_equal and_ or_ xor invert logical_and logical_or logical_not logical_xor isnan
    isinf isfinite iand ior ixor
    """.split()  # noqa: SIM905
)


def has_numpys_bits(name: str) -> bool:
    return name in MOVES or name in ROUNDS_ONCE
