"""Rules of arithmetic: elementwise ops, reductions, matrix products.

Enters: a `TracedCall`. Leaves: its `Split`. Elementwise ops keep rows where they are. A reduction over other dims does
too; a sum over the batch is the sum of the parts' sums, and so is a matrix product that contracts over it: the gradient
of a linear layer's weight.
"""

from __future__ import annotations

from vdnn.compile.forms.rows import MixesSamples, Rows, Split, Total, TracedCall, chunk_rule, dims_of, only, require


@chunk_rule
def elementwise(call: TracedCall) -> Split:
    """Of any number of arguments that are broadcast against each other."""
    ndim = call.result.ndim
    found = ((rows, len(call.shape(source))) for source in call.sources if (rows := call.known(source)))
    rows = only(rows.moved(rows.dim + ndim - own) for rows, own in found)
    for source in call.sources:
        call.broadcast(source, rows, ndim)
    return call.all_results(rows)


@chunk_rule
def over_rows(call: TracedCall) -> Split:
    """Ops that read along a dim and keep all dims: softmax and its backward, cumulative sums, sorting."""
    rows = only(found for found in map(call.known, call.sources) if found)
    for source in call.sources:
        call.take(source, rows)
    dims = call["dim"] if call["dim"] is not None else call["dims"]
    if rows.dim in dims_of(dims, len(call.shape(call.sources[0]))):
        raise MixesSamples
    return call.all_results(rows)


@chunk_rule
def triangle(call: TracedCall) -> Split:
    rows = call.rows("self")
    call.take(call["self"], rows)
    if rows.dim >= call.result.ndim - 2:
        raise MixesSamples
    return call.split(rows)


@chunk_rule
def reduce(call: TracedCall) -> Split:
    """Over dims that are not the batch."""
    rows, ndim = call.rows("self"), len(call.shape(call["self"]))
    call.take(call["self"], rows)
    dims = dims_of(call["dim"], ndim)
    if rows.dim in dims:
        raise MixesSamples
    kept = rows if call["keepdim"] else rows.moved(rows.dim - sum(dim < rows.dim for dim in dims))
    return call.all_results(kept)


@chunk_rule
def add_up(call: TracedCall) -> Split:
    rows, ndim = call.rows("self"), len(call.shape(call["self"]))
    if rows.dim not in dims_of(call["dim"], ndim):
        return reduce(call)
    call.take(call["self"], rows)
    return call.split(Total.SUM)


@chunk_rule
def product(call: TracedCall) -> Split:
    """`mm` and `bmm`, with the rows in either factor, in a dim of the result or in the one that is contracted."""
    second = call["mat2"]
    found = _rows_of_product(call, call["self"], second)
    if found is None:
        return call.split(Total.SUM)
    return call.split(found)


@chunk_rule
def add_to_product(call: TracedCall) -> Split:
    """`addmm` and `baddbmm`. What is added would be added once per part if the batch were contracted."""
    names = ("mat1", "mat2") if call["mat1"] is not None else ("batch1", "batch2")
    rows = require(_rows_of_product(call, *(call[name] for name in names)))
    call.broadcast(call["self"], rows, call.result.ndim)
    return call.split(rows)


def _rows_of_product(call: TracedCall, first: object, second: object) -> Rows | None:
    """Where the result has the rows; None where it sums over them. Both factors have the dims of the result."""
    left, right, ndim = call.known(first), call.known(second), call.result.ndim
    column, row = ndim - 1, ndim - 2
    if left == right and left is not None and left.dim < row:  # a product of its own for every sample
        rows = left
    elif left is not None and left.dim == row and right is None:
        call.take(first, left)
        call.whole(second)
        return left
    elif right is not None and right.dim == column and left is None:
        call.whole(first)
        call.take(second, right)
        return right
    elif (left is not None and left.dim == column) or (right is not None and right.dim == row):
        per_sample = (left or require(right)).per_sample
        call.take(first, Rows(column, per_sample))
        call.take(second, Rows(row, per_sample))
        return None
    else:
        rows = only(found for found in (left, right) if found)
        if rows.dim >= row:
            raise MixesSamples
    call.take(first, rows)
    call.take(second, rows)
    return rows
