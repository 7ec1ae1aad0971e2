"""How many bytes an op is about to allocate for its results.

Enters: an op and its arguments, before it runs. Leaves: bytes. The first time an op meets such shapes it runs on meta
tensors, which have no memory; what it then really made is remembered, so that each combination is asked about once. Not
known before it has run is an op whose result's size depends on values, and one that takes a tensor of a subclass or of
a sparse layout: what such a tensor is made of is its own affair.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from functools import cache
from typing import Any

import torch

from vdnn.eager.live_bytes import is_plain
from vdnn.torch_private import schema_of, storage_id, tree_leaves, tree_map, without_torch_dispatch

MAX_KNOWN = 1 << 16  # combinations remembered; a model whose shapes never repeat starts over
_META = torch.device("meta")


class ResultSizes:
    def __init__(self) -> None:
        self._known: dict[Hashable, int] = {}

    def before(self, op: Any, args: Any, kwargs: Any) -> tuple[Hashable | None, int]:
        """A key for `after`, and the bytes; the key is None when there is nothing to learn."""
        if only_aliases(op):
            return None, 0
        try:
            key: Hashable = (op, _described(args), _described(kwargs.items()))
            known = self._known.get(key)
        except TypeError:
            return None, 0  # an argument that cannot be a key
        if known is not None:
            return None, known
        nbytes = _on_meta(op, args, kwargs)
        return (None, 0) if nbytes is None and depends_on_values(op) else (key, nbytes or 0)

    def after(self, key: Hashable | None, nbytes: int) -> None:
        if key is not None:
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[key] = nbytes


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


def _on_meta(op: Any, args: Any, kwargs: Any) -> int | None:
    try:
        with without_torch_dispatch():  # a question, not an op of the model: no tracker should see it
            return _made_on_meta(op, *tree_map(_as_meta, (args, kwargs)))
    except (RuntimeError, NotImplementedError, TypeError, ValueError):
        return None  # data decides, or the op has no meta kernel: its results are counted when they are there


def _made_on_meta(op: Any, args: Any, kwargs: Any) -> int:
    results = op(*args, **kwargs)
    given = {storage_id(t.untyped_storage()) for t in tensors_in(tree_leaves((args, kwargs)))}
    made = {storage_id(t.untyped_storage()): t.untyped_storage().nbytes() for t in tensors_in(tree_leaves(results))}
    return sum(nbytes for key, nbytes in made.items() if key not in given)


def _as_meta(thing: Any) -> Any:
    if isinstance(thing, torch.Tensor):
        return torch.empty_strided(thing.shape, thing.stride(), dtype=thing.dtype, device=_META)
    return _META if isinstance(thing, torch.device) else thing
