"""What a fused recurrent layer of the CPU returns: a workspace for its backward, and gradients of two biases.

Enters: what the stand-ins of `mkldnn_rnn_layer` and its backward return. Leaves: the same, as large as the kernels make
it. PyTorch's stand-in returns no workspace; it is the largest thing that an LSTM keeps. How oneDNN lays it out depends
on the processor, so the kernel itself is asked, once for each shape, with numbers that nobody looks at: no more is
alive meanwhile than while the step runs that op. A layer that is too large to be run for a question is asked of two
short sequences: every further token takes the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import ceil
from typing import Any

import torch

from vdnn.torch_private import below_autograd, without_modes

MAX_ASKED_NBYTES = 64 * 2**20
"""Of a layer's output, up to which it is run as it is: some 0.1 s on the 2-core machine of the figures."""

_SHORT, _LONGER = 4, 8
"""Tokens of the two short sequences. oneDNN rounds each of its arrays up to a page, which errs by some pages."""

_PAGES_NBYTES = 8 * 4096


def with_workspace(results: Sequence[torch.Tensor], *args: Any) -> tuple[torch.Tensor, ...]:
    """What the stand-in of `mkldnn_rnn_layer` returns, with the workspace that its kernel returns."""
    given = tuple((tuple(one.shape), one.dtype) if isinstance(one, torch.Tensor) else _hashable(one) for one in args)
    *others, workspace = results
    return (*others, workspace.new_empty(_nbytes(given)))


def with_two_biases(results: Sequence[torch.Tensor], *_: Any) -> tuple[torch.Tensor, ...]:
    """What the stand-in of `mkldnn_rnn_layer_backward` returns, with gradients of the two biases that are two tensors
    of the same numbers; it returns one twice."""
    return (*results[:4], torch.empty_like(results[4]), *results[5:])


def _hashable(argument: Any) -> Any:
    return ("list", *argument) if isinstance(argument, list) else argument


@cache
def _nbytes(given: tuple[Any, ...]) -> int:
    (shape, dtype), state = given[0], given[5]
    seq_len, batch, _ = shape
    if seq_len * batch * state[0][-1] * dtype.itemsize <= MAX_ASKED_NBYTES or seq_len <= _LONGER:
        return _asked(given)
    short, longer = (_nbytes((((num_tokens, *shape[1:]), dtype), *given[1:])) for num_tokens in (_SHORT, _LONGER))
    return ceil(longer + (longer - short) / (_LONGER - _SHORT) * (seq_len - _LONGER)) + _PAGES_NBYTES


def _asked(given: tuple[Any, ...]) -> int:
    with without_modes(), below_autograd(), torch.enable_grad():
        made = [_made(*one) if _is_tensor(one) else list(one[1:]) if isinstance(one, tuple) else one for one in given]
        return int(torch.ops.aten.mkldnn_rnn_layer(*made)[3].untyped_storage().nbytes())


def _is_tensor(one: Any) -> bool:
    return isinstance(one, tuple) and isinstance(one[-1], torch.dtype)


def _made(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)
