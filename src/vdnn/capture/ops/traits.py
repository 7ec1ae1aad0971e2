"""One table of what vdnn knows about ops: may it move, repeat or drop them, and what does each take of what it reads?

Enters: an op (`OpOverload`) and the arguments of one call. Leaves: its traits, and the `Need` of each argument by name.

The one idea (Gist, section 3, made general): **what backward needs is information, not a tensor**. ReLU's backward
wants one bit of each element, a max-pool's backward an index into a window, an average pool's backward only a shape.
Ops the table does not know are treated safely: they need all values, and if nothing is known of their effects they are
kept and never repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from vdnn.ir import Need, Trait
from vdnn.torch_private import OpOverload, schema_of

Arguments = Mapping[str, Any]
Needs = Mapping[str, Need]

KNOWN_NAMESPACES = frozenset({"aten", "prims"})
"""Namespaces whose schemas tell the truth about views, mutation and randomness, because PyTorch's own tests check
them."""

COLLECTIVE_NAMESPACES = frozenset({"c10d", "_c10d_functional", "_c10d_functional_autograd"})

_SHAPE_OF_SELF: Needs = {"self": Need.SHAPE}

_FIXED_NEEDS: dict[str, Needs] = {
    # One bit of each element.
    "threshold_backward": {"self": Need.SIGN},
    "leaky_relu_backward": {"self": Need.SIGN},
    # Where an element is NaN, aten's vector loop says no and its scalar tail says yes; a bit says no.
    "hardtanh_backward": {"self": Need.BOOL},  # is it between the two bounds?
    "hardsigmoid_backward": {"self": Need.BOOL},
    "native_dropout_backward": {"mask": Need.BOOL},
    "masked_fill": {"mask": Need.BOOL},
    "where": {"condition": Need.BOOL},
    # A position within a small window.
    "max_pool2d_with_indices_backward": {"self": Need.SHAPE, "indices": Need.WINDOW_INDEX},
    "max_pool3d_with_indices_backward": {"self": Need.SHAPE, "indices": Need.WINDOW_INDEX},
    "adaptive_max_pool2d_backward": {"self": Need.SHAPE},
    # Only how large it was.
    "avg_pool2d_backward": _SHAPE_OF_SELF,
    "avg_pool3d_backward": _SHAPE_OF_SELF,
    "_adaptive_avg_pool2d_backward": _SHAPE_OF_SELF,
    "_adaptive_avg_pool3d_backward": _SHAPE_OF_SELF,
    "nll_loss_backward": _SHAPE_OF_SELF,
    "nll_loss2d_backward": _SHAPE_OF_SELF,
    "reflection_pad1d_backward": _SHAPE_OF_SELF,
    "reflection_pad2d_backward": _SHAPE_OF_SELF,
    "replication_pad1d_backward": _SHAPE_OF_SELF,
    "replication_pad2d_backward": _SHAPE_OF_SELF,
    "zeros_like": _SHAPE_OF_SELF,
    "ones_like": _SHAPE_OF_SELF,
    "empty_like": _SHAPE_OF_SELF,
    "full_like": _SHAPE_OF_SELF,
    "rand_like": _SHAPE_OF_SELF,
    "randn_like": _SHAPE_OF_SELF,
    "new_empty": _SHAPE_OF_SELF,
    "new_empty_strided": _SHAPE_OF_SELF,
    "new_zeros": _SHAPE_OF_SELF,
    "new_ones": _SHAPE_OF_SELF,
    "new_full": _SHAPE_OF_SELF,
}


def _threshold_backward(arguments: Arguments) -> Needs:
    # Against any other threshold than 0 the question "was it above?" is still one bit, but not the sign.
    return {"self": Need.SIGN if arguments["threshold"] == 0 else Need.BOOL}


def _batch_norm_backward(arguments: Arguments) -> Needs:
    # In training the statistics of the batch are used and the running ones are not looked at; in eval it is the
    # reverse.
    unread = ("running_mean", "running_var") if arguments["train"] else ("save_mean", "save_invstd")
    return dict.fromkeys(unread, Need.NOTHING)


def _convolution_backward(arguments: Arguments) -> Needs:
    wants_input_gradient, wants_weight_gradient, _ = arguments["output_mask"]
    needs: dict[str, Need] = {}
    if not wants_weight_gradient:
        needs["input"] = Need.SHAPE
    if not wants_input_gradient:
        needs["weight"] = Need.SHAPE
    return needs


_NEEDS_OF_CALL: dict[str, Callable[[Arguments], Needs]] = {
    "threshold_backward": _threshold_backward,
    "native_batch_norm_backward": _batch_norm_backward,
    "convolution_backward": _convolution_backward,
}


WITHOUT_UPDATES: dict[Any, tuple[Any, frozenset[str]]] = {
    torch.ops.aten._native_batch_norm_legit.default: (
        torch.ops.aten._native_batch_norm_legit.no_stats,
        frozenset({"running_mean", "running_var"}),
    ),
}
"""Ops that update their inputs on the way, the form that does not, and the arguments it does without. Its results are
the same bit for bit: in training, statistics come from the batch."""


def needs_of(op: OpOverload, arguments: Arguments) -> Needs:
    """What a call takes of its arguments. Arguments that are not listed need all values."""
    if op.namespace not in KNOWN_NAMESPACES:
        return {}
    name = schema_of(op).name.split("::")[1].removesuffix("_")  # in place an op takes what it takes otherwise
    of_call = _NEEDS_OF_CALL.get(name)
    return of_call(arguments) if of_call is not None else _FIXED_NEEDS.get(name, {})


def traits_of(op: object) -> frozenset[Trait]:
    """What a rewrite must know of an op. Anything that is not an op with a schema has effects nobody declared."""
    if not isinstance(op, OpOverload):
        return frozenset({Trait.MUST_KEEP})
    traits: set[Trait] = set()
    if op.namespace in COLLECTIVE_NAMESPACES:
        traits.add(Trait.COLLECTIVE)
    elif op.namespace not in KNOWN_NAMESPACES:
        traits.add(Trait.MUST_KEEP)
    if schema_of(op).is_mutable:
        traits.add(Trait.IN_PLACE)
    elif op.is_view or op is torch.ops.aten._unsafe_view.default:
        traits.add(Trait.VIEW)
    if op in WITHOUT_UPDATES:
        traits.add(Trait.UPDATES)
    if torch.Tag.nondeterministic_seeded in op.tags:
        traits.add(Trait.RANDOM)
    return frozenset(traits)
