"""Rules of ops that rearrange: where the rows of samples are after a view, a permutation, a concatenation.

Enters: a `TracedCall`. Leaves: its `Split`. A view that merges the batch with a dim behind it, (batch, tokens,
channels) to (batch * tokens, channels), leaves every sample its own rows; one that merges it with a dim in front of it
does not.
"""

from __future__ import annotations

from math import prod

from vdnn.compile.forms.rows import MixesSamples, Rows, Split, TracedCall, chunk_rule, dims_of, only, require


@chunk_rule
def view(call: TracedCall) -> Split:
    if call["size"] is None:  # as another dtype
        raise MixesSamples
    rows, shape, result = call.rows("self"), call.shape(call["self"]), tuple(call.result.shape)
    call.take(call["self"], rows)
    before, behind = prod(shape[: rows.dim]), prod(shape[rows.dim + 1 :])
    for dim, size in enumerate(result):
        is_same_place = prod(result[:dim]) == before and size * prod(result[dim + 1 :]) == shape[rows.dim] * behind
        if is_same_place and size % call.batch == 0:
            found = Rows(dim, size // call.batch)
            return call.split(found, sizes={"size": found})
    raise MixesSamples


@chunk_rule
def permute(call: TracedCall) -> Split:
    rows, ndim = call.rows("self"), len(call.shape(call["self"]))
    call.take(call["self"], rows)
    return call.split(rows.moved(dims_of(call["dims"], ndim).index(rows.dim)))


@chunk_rule
def transpose(call: TracedCall) -> Split:
    """`t` is the transpose of two dims."""
    rows, ndim = call.rows("self"), len(call.shape(call["self"]))
    call.take(call["self"], rows)
    if ndim < 2:
        return call.split(rows)
    first, second = dims_of([call["dim0"] or 0, 1 if call["dim1"] is None else call["dim1"]], ndim)
    return call.split(rows.moved({first: second, second: first}.get(rows.dim, rows.dim)))


@chunk_rule
def unsqueeze(call: TracedCall) -> Split:
    rows, ndim = call.rows("self"), len(call.shape(call["self"]))
    call.take(call["self"], rows)
    (dim,) = dims_of(call["dim"], ndim + 1)
    return call.split(rows.moved(rows.dim + (dim <= rows.dim)))


@chunk_rule
def squeeze(call: TracedCall) -> Split:
    rows, shape = call.rows("self"), call.shape(call["self"])
    call.take(call["self"], rows)
    removed = [dim for dim in dims_of(call["dim"], len(shape)) if shape[dim] == 1]
    return call.split(rows.moved(rows.dim - sum(dim < rows.dim for dim in removed)))


@chunk_rule
def expand(call: TracedCall) -> Split:
    rows = call.rows("self")
    call.take(call["self"], rows)
    found = rows.moved(rows.dim + len(call["size"]) - len(call.shape(call["self"])))
    return call.split(found, sizes={"size": found})


@chunk_rule
def repeat(call: TracedCall) -> Split:
    rows = call.rows("self")
    call.take(call["self"], rows)
    dim = rows.dim + len(call["repeats"]) - len(call.shape(call["self"]))
    if call["repeats"][dim] != 1:
        raise MixesSamples
    return call.split(rows.moved(dim))


@chunk_rule
def part(call: TracedCall) -> Split:
    """`slice`, and `split` into several. Along the batch only if nothing is cut off."""
    rows, shape = call.rows("self"), call.shape(call["self"])
    call.take(call["self"], rows)
    (dim,) = dims_of(call["dim"], len(shape))
    if dim == rows.dim and call.result.shape[dim] != shape[dim]:
        raise MixesSamples
    return call.all_results(rows)


@chunk_rule
def select(call: TracedCall) -> Split:
    """`select` takes one index of a dim, `unbind` every one."""
    rows, ndim = call.rows("self"), len(call.shape(call["self"]))
    call.take(call["self"], rows)
    (dim,) = dims_of(call["dim"], ndim)
    if dim == rows.dim:
        raise MixesSamples
    return call.all_results(rows.moved(rows.dim - (dim < rows.dim)))


@chunk_rule
def slice_backward(call: TracedCall) -> Split:
    rows = call.rows("grad_output")
    call.take(call["grad_output"], rows)
    (dim,) = dims_of(call["dim"], len(call["input_sizes"]))
    if dim == rows.dim and call.shape(call["grad_output"])[dim] != call["input_sizes"][dim]:
        raise MixesSamples
    return call.split(rows, sizes={"input_sizes": rows})


@chunk_rule
def select_backward(call: TracedCall) -> Split:
    rows = call.rows("grad_output")
    call.take(call["grad_output"], rows)
    (dim,) = dims_of(call["dim"], len(call["input_sizes"]))
    found = rows.moved(rows.dim + (dim <= rows.dim))
    return call.split(found, sizes={"input_sizes": found})


@chunk_rule
def put_part(call: TracedCall) -> Split:
    """`slice_scatter` and `select_scatter`: a copy with a part of another dim replaced."""
    rows, ndim = only(filter(None, [call.known(call["self"])])), len(call.shape(call["self"]))
    call.take(call["self"], rows)
    (dim,) = dims_of(call["dim"], ndim)
    if dim == rows.dim:
        raise MixesSamples
    has_all_dims = len(call.shape(call["src"])) == ndim
    call.take(call["src"], rows if has_all_dims else rows.moved(rows.dim - (dim < rows.dim)))
    return call.split(rows)


@chunk_rule
def concatenate(call: TracedCall) -> Split:
    rows = only(found for found in map(call.known, call["tensors"]) if found)
    for tensor in call["tensors"]:
        call.take(tensor, rows)
    (dim,) = dims_of(call["dim"], call.result.ndim)
    if dim == rows.dim:
        raise MixesSamples
    return call.split(rows)


@chunk_rule
def stack(call: TracedCall) -> Split:
    rows = only(found for found in map(call.known, call["tensors"]) if found)
    for tensor in call["tensors"]:
        call.take(tensor, rows)
    (dim,) = dims_of(call["dim"], call.result.ndim)
    return call.split(rows.moved(rows.dim + (dim <= rows.dim)))


@chunk_rule
def pad(call: TracedCall) -> Split:
    rows, ndim = call.rows("self"), len(call.shape(call["self"]))
    call.take(call["self"], rows)
    last = 2 * (ndim - 1 - rows.dim)  # paddings are listed from the last dim on
    if any(call["pad"][last : last + 2]):
        raise MixesSamples
    return call.split(rows)


@chunk_rule
def new_like(call: TracedCall) -> Split:
    """A constant of a size that is written out: with rows where the tensor has them whose dtype it takes."""
    rows = require(call.known(call["self"]))
    call.take(call["self"], rows)
    if tuple(call["size"][rows.dim : rows.dim + 1]) != (rows.of(call.batch),):
        raise MixesSamples
    return call.split(rows, sizes={"size": rows})
