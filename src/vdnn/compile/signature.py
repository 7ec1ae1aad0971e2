"""What a step that was traced ahead of time depends on: calls with equal signatures run the same program.

Enters: a module and the arguments of a call. Leaves: something hashable. The one idea: a trace freezes what it saw, so
all that it may have seen is part of the key: shapes, layouts, aliases, modes, hooks, and the plain attributes of
modules.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Sequence
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import torch
from torch import nn

from vdnn.torch_private import backward_hooks, forward_hooks, storage_id, tree_flatten

_NOT_SETTINGS = frozenset(vars(nn.Module())) - {"training"} | {"_compiled_call_impl"}
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
_LONGEST_SETTING = 256
_FUNCTIONS = (FunctionType, BuiltinFunctionType, MethodType, functools.partial)


def signature_of(module: nn.Module, args: Any, kwargs: Any) -> Hashable:
    """Everything the trace depended on: arguments, parameters, modes. Equal signatures run the same program."""
    leaves, spec = tree_flatten((args, kwargs))
    settings = tuple(map(_settings, module.modules()))
    tensors = (*module.parameters(), *module.buffers())
    kinds = {"cpu", *(tensor.device.type for tensor in (*tensors, *leaves) if isinstance(tensor, torch.Tensor))}
    autocast = tuple(
        (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in sorted(kinds - {"meta"})
    )
    modes = (autocast, torch.get_default_dtype())
    state = tuple(map(_leaf_signature, tensors))
    return (tuple(map(_leaf_signature, leaves)), _aliases(leaves), str(spec), settings, modes, state)


def _leaf_signature(leaf: Any) -> Hashable:
    if isinstance(leaf, torch.Tensor):
        return (tuple(leaf.shape), leaf.stride(), leaf.dtype, leaf.device, leaf.requires_grad)
    return (type(leaf), repr(leaf))


def _aliases(leaves: Sequence[Any]) -> Hashable:
    """For every tensor the first one that shares its memory, and how far it is from those it overlaps: a step may write
    into one argument and read another."""
    sharing: dict[int, list[tuple[int, range]]] = {}
    found: list[Hashable] = []
    for position, tensor in enumerate(leaf for leaf in leaves if isinstance(leaf, torch.Tensor)):
        ours, others = _spanned(tensor), sharing.setdefault(storage_id(tensor.untyped_storage()), [])
        overlapped = [(k, ours.start - o.start) for k, o in others if ours.start < o.stop and o.start < ours.stop]
        others.append((position, ours))
        found.append((others[0][0], tuple(overlapped)))
    return tuple(found)


def _spanned(tensor: torch.Tensor) -> range:
    """The bytes of its storage from the first that it shows to the last."""
    begin = tensor.storage_offset()
    last = begin + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return range(begin * tensor.element_size(), (last + 1 if tensor.numel() else begin) * tensor.element_size())


def _settings(module: nn.Module) -> Hashable:
    """What its forward may depend on: numbers and words among its attributes (dropout's p, BatchNorm's momentum), also
    in lists, dicts and configuration objects, functions it holds, and its hooks. What grows from call to call is none:
    lists of anything else are left out, and so are tables: this is asked at every call."""
    held = [(name, value) for name, value in vars(module).items() if name not in _NOT_SETTINGS and not _is_ours(value)]
    settings = [(name, _setting(value)) for name, value in held]
    return (type(module), repr(settings), *map(tuple, (*forward_hooks(module), *backward_hooks(module))))


def _is_ours(value: Any) -> bool:
    """An attribute that a virtualized module has for its copies (`compile/virtual_module.py`)."""
    return isinstance(value, FunctionType) and getattr(value, "is_vdnn", False)


def _setting(value: Any, depth: int = 3) -> Any:
    """Something whose repr tells whether the value has changed; None where nobody can tell."""
    if type(value) in _PLAIN:
        return (value,)
    if isinstance(value, _FUNCTIONS):
        return id(value.__func__) if isinstance(value, MethodType) else id(value)
    if depth == 0 or isinstance(value, (torch.Tensor, nn.Module)):
        return None
    if isinstance(value, (list, tuple, dict)):
        if len(value) > _LONGEST_SETTING:
            return None
        items = value.items() if isinstance(value, dict) else enumerate(value)
        settings = [(key, _setting(item, depth - 1)) for key, item in items]
        return settings if settings and all(setting is not None for _, setting in settings) else None
    return [(name, _setting(item, depth - 1)) for name, item in getattr(value, "__dict__", {}).items()]
