"""What strides and types a kernel gives its results: it is asked, on a few elements.

Enters: a call of an op, described. Leaves: the layouts of what the real op returns for such a call, or None where it
cannot be asked. The one idea: nobody has to write down how kernels lay results out, or to learn it from steps that went
wrong. An op that is new takes a millisecond, once in the process: the kernel itself is run on small made-up tensors
with the same order of dims and the same types.

Note: [What is asked]
Ops of PyTorch's own whose results are all new tensors, of sizes that do not depend on values, where an argument is laid
out otherwise than row after row, is of a narrow type, or of another type than the rest. Of other calls every stand-in
is right: over the operator database of PyTorch 2.13, 17,322 calls, those of 30 ops were not, all of this kind; and
kernels that are asked leave code and holes in the process, 4 to 6 MiB for a U-Net. A call of less than `EASY_NBYTES` is
asked as it is, a larger one through smaller ones that are like it (`small_calls.py`), and as it is where those fail and
it is no larger than trials of ops may always be. Never asked are convolutions and products of matrices: the library
behind them keeps code for every shape that it has met, some 20 MiB for those of a small ResNet-50. What is not asked
has the layouts of PyTorch's stand-in; the watched step looks at every result (`runtime/traced_layouts.py`).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import torch

from vdnn.capture.dim_orders import in_order_of, is_dense
from vdnn.capture.small_calls import Call, Like, smaller_calls
from vdnn.hardware.where import CPU, own_generators
from vdnn.torch_private import OpOverload, schema_of, tree_unflatten, without_autocast, without_modes
from vdnn.units import KiB, MiB

aten = torch.ops.aten

EASY_NBYTES = 256 * KiB
"""Its inputs: such a product of matrices takes a millisecond."""

MOST_NBYTES = 16 * MiB
"""As much as trials may always take (`compile/estimate.py`)."""

NUM_REMEMBERED = 1 << 14  # calls; each takes about a kilobyte

ASKED_INSTEAD = {
    aten.bernoulli.p: aten.bernoulli_.float,
    aten.rrelu_with_noise_functional.default: aten.rrelu_with_noise.default,
}
"""By op that stands in a trace for one that writes: what eager runs. Where what the trace runs in its place is laid out
otherwise (`rrelu` in channels_last), the watched step refuses."""

KEEP_CODE = frozenset({aten.convolution, aten.convolution_backward, aten.mm, aten.addmm, aten.bmm, aten.baddbmm})
"""Note: [What is asked]"""

_WIDE = {torch.float32, torch.float64}
_VALUE_DEPENDENT = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
_FAILURES = (RuntimeError, ValueError, IndexError, TypeError, AssertionError, ArithmeticError)


@dataclass(frozen=True, slots=True)
class Layout:
    """Of one result."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    def at(self, shape: tuple[int, ...]) -> Layout | None:
        """The same for a result of this shape; None where more than an order of dims would be needed to say it."""
        if shape == self.shape:
            return self
        alike = len(shape) == len(self.shape) and all(
            (a == 1) == (b == 1) for a, b in zip(shape, self.shape, strict=False)
        )
        if not alike or not is_dense(self.shape, self.stride):
            return None
        return Layout(shape, in_order_of(shape, self.shape, self.stride), self.dtype)


Answer = tuple[Layout | None, ...] | None
"""By position among the results, None for what is no tensor; or nothing."""


@cache
def may_be_asked(op: OpOverload) -> bool:
    """Note: [What is asked]"""
    if op.namespace != "aten" or _VALUE_DEPENDENT & set(op.tags) or op.overloadpacket in KEEP_CODE:
        return False
    schema = schema_of(op)
    return bool(schema.returns) and all(each.alias_info is None for each in schema.returns)


def asked(call: Call) -> Iterator[Answer]:
    """Answers to such calls as are small enough, the most alike first; the caller takes the first that fits."""
    if not _is_here(call.where) or not _is_of_another_kind(call):
        return
    if call.nbytes <= EASY_NBYTES:
        yield answer(call)
        return
    for smaller in smaller_calls(call):
        if smaller.nbytes <= EASY_NBYTES:
            yield answer(smaller)
    if call.nbytes <= MOST_NBYTES:
        yield answer(call)


@lru_cache(NUM_REMEMBERED)
def answer(call: Call) -> Answer:
    """Of this very call. It draws no numbers of the user's, and leaves nothing behind."""
    for values in (0, 1):
        try:
            with (
                without_modes(),
                without_autocast(),
                torch.no_grad(),
                own_generators(call.where),
                warnings.catch_warnings(),
            ):
                warnings.simplefilter("ignore")
                args, kwargs = tree_unflatten([_made(leaf, values) for leaf in call.leaves], call.spec)
                results = call.op(*args, **kwargs)
        except _FAILURES:
            continue
        return tuple(_layout(one) for one in (results if isinstance(results, (tuple, list)) else (results,)))
    return None


def _is_of_another_kind(call: Call) -> bool:
    """Note: [What is asked]"""
    types = {like.dtype for like in call.tensors if like.dtype.is_floating_point or like.dtype.is_complex}
    return len(types) > 1 or bool(types - _WIDE) or not all(like.is_row_after_row for like in call.tensors)


@cache
def _is_here(where: torch.device) -> bool:
    accelerator = torch.accelerator.current_accelerator()
    return where == CPU or (accelerator is not None and where.type == accelerator.type)


def _made(leaf: Any, values: int) -> Any:
    """Of one value: safe as a variance and under a logarithm, and as an index. If the op refuses that: with ones on the
    diagonal, which can be inverted."""
    if not isinstance(leaf, Like):
        return leaf
    flat = torch.empty(leaf.extent, dtype=leaf.dtype, device=leaf.where)
    is_integer = not (leaf.dtype.is_floating_point or leaf.dtype.is_complex)
    flat.fill_(0 if is_integer else 0.5 - 0.5 * values)
    made = flat.as_strided(leaf.shape, leaf.stride)
    if values and not is_integer and made.dim() >= 2:
        made.diagonal(dim1=-2, dim2=-1).fill_(1)
    return made


def _layout(result: object) -> Layout | None:
    if not isinstance(result, torch.Tensor) or result.layout is not torch.strided:
        return None
    return Layout(tuple(result.shape), result.stride(), result.dtype)
