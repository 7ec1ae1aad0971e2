"""How many bytes an op is about to allocate for its results.

Enters: an op and its arguments, before it runs. Leaves: bytes, from a run on meta tensors, which have no memory; and a
key, so that each combination is asked about once (`op_needs.py`). Not known before it has run is an op whose result's
size depends on values, and one that takes a tensor of a subclass or of a sparse layout: what such a tensor is made of
is its own affair.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from functools import cache
from typing import Any

import torch

from vdnn.eager.live_bytes import is_plain
from vdnn.torch_private import schema_of, storage_id, tree_leaves, tree_map, without_torch_dispatch

_META = torch.device("meta")


def key_of(op: Any, args: Any, kwargs: Any) -> tuple[Hashable, ...]:
    """Calls of one key make results of the same sizes. A TypeError: an argument that cannot be a part of a key."""
    key = (op, _described(args), _described(kwargs.items()))
    hash(key)
    return key


@cache
def only_aliases(op: Any) -> bool:
    """Whether all results are views of arguments or the arguments themselves."""
    return all(result.alias_info is not None for result in schema_of(op).returns)


@cache
def depends_on_values(op: Any) -> bool:
    """Whether the shapes of the results may: those of `nonzero`, or of indexing with a mask."""
    return torch.Tag.dynamic_output_shape in op.tags


def tensors_in(things: Iterable[Any]) -> Iterator[torch.Tensor]:
    """The tensors among arguments or results, which nest one list deep."""
    for thing in things:
        if isinstance(thing, torch.Tensor):
            if is_plain(thing):
                yield thing
        elif isinstance(thing, (list, tuple)):
            yield from tensors_in(thing)


def _described(things: Iterable[Any]) -> tuple[Hashable, ...]:
    return tuple(_description(thing) for thing in things)


def _description(thing: Any) -> Hashable:
    if isinstance(thing, torch.Tensor):
        if not is_plain(thing):
            raise TypeError(f"a {type(thing).__name__} of layout {thing.layout} has no size of its own")
        return (thing.shape, thing.stride(), thing.dtype, thing.device)
    if isinstance(thing, (list, tuple)):
        return _described(thing)
    return (type(thing), thing)


def results_on_meta(op: Any, args: Any, kwargs: Any, block_nbytes: int = 1) -> int | None:
    """Each storage is whole blocks. None: nobody knows."""
    try:
        with without_torch_dispatch():  # a question, not an op of the model: no tracker should see it
            made = _made_on_meta(op, *tree_map(_as_meta, (args, kwargs)))
    except (RuntimeError, NotImplementedError, TypeError, ValueError):
        return None  # data decides, or the op has no meta kernel: its results are counted when they are there
    return sum(nbytes + -nbytes % block_nbytes for nbytes in made)


def _made_on_meta(op: Any, args: Any, kwargs: Any) -> list[int]:
    results = op(*args, **kwargs)
    given = {storage_id(t.untyped_storage()) for t in tensors_in(tree_leaves((args, kwargs)))}
    made = {storage_id(t.untyped_storage()): t.untyped_storage().nbytes() for t in tensors_in(tree_leaves(results))}
    return [nbytes for key, nbytes in made.items() if key not in given]


def _as_meta(thing: Any) -> Any:
    if isinstance(thing, torch.Tensor):
        return torch.empty_strided(thing.shape, thing.stride(), dtype=thing.dtype, device=_META)
    return _META if isinstance(thing, torch.device) else thing
