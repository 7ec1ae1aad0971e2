"""What a virtualized module takes along: its copies are virtualized too, and its `forward` is no way around its budget.

Enters: a module whose call was replaced, and a recipe for doing so again. Leaves: the same module with three attributes
of its own, which Python looks up before those of its class:

    __deepcopy__, __reduce_ex__    a copy, deep or shallow, and one that was pickled or saved whole and loaded, is made
                                   virtual with the same options
    forward                        with a budget, calling it is calling the module; while the module runs it is the
                                   class's own again, which is what a capture sees
"""

from __future__ import annotations

import copy
import functools
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from vdnn.errors import Unsupported
from vdnn.torch_private import backward_hooks, compiled_call, forward_hooks

OURS = ("__deepcopy__", "__reduce_ex__", "forward")


@dataclass(frozen=True)
class Recipe:
    """How a module was virtualized. A copy of one that had a sample is captured ahead of time by its first call."""

    has_sample: bool
    fullgraph: bool
    options: Mapping[str, Any] = field(default_factory=dict)


Revive = Callable[[nn.Module, Recipe], nn.Module]
"""Makes a bare module virtual and returns it. Pickled by its name."""


def bare_copy(module: nn.Module) -> nn.Module:
    """Another object of its class that shares all tables with it, and is plain."""
    ours = {name: module.__dict__.pop(name) for name in OURS if getattr(module.__dict__.get(name), "is_vdnn", False)}
    try:
        return copy.copy(module)
    finally:
        module.__dict__.update(ours)


def follow_copies(virtual: nn.Module, revive: Revive, recipe: Recipe) -> None:
    """Copies of `virtual`, in whatever way they are made, are virtual too."""
    behind = weakref.ref(virtual)  # what a module holds does not hold the module

    def deep_copy(memo: dict[int, Any]) -> nn.Module:
        original = _alive(behind)
        copied = memo[id(original)] = type(original).__new__(type(original))
        reduced: Any = bare_copy(original).__reduce_ex__(4)
        state = copy.deepcopy(reduced[2], memo)
        copied.__setstate__(state) if hasattr(copied, "__setstate__") else copied.__dict__.update(state)
        return revive(copied, recipe)

    def reduce(protocol: int) -> tuple[Any, ...]:
        return revive, (bare_copy(_alive(behind)), recipe)

    virtual.__dict__["__deepcopy__"] = _marked(deep_copy)
    virtual.__dict__["__reduce_ex__"] = _marked(reduce)


class ForwardIsACall:
    """While open, the module has the `forward` of its class; otherwise calling that is calling the module."""

    def __init__(self, virtual: nn.Module) -> None:
        self._lock, self._num_open = threading.Lock(), 0
        self._behind = behind = weakref.ref(virtual)

        @functools.wraps(virtual.forward)
        def forward(*args: Any, **kwargs: Any) -> Any:
            module = _alive(behind)
            is_part = torch.compiler.is_dynamo_compiling() or compiled_call(module) is None
            if is_part:  # of something larger that is being captured
                return type(module).forward(module, *args, **kwargs)
            _refuse_hooks(module)
            return module(*args, **kwargs)

        self._forward = _marked(forward)
        virtual.__dict__["forward"] = self._forward

    def __enter__(self) -> None:
        with self._lock:
            self._num_open += 1
            _alive(self._behind).__dict__.pop("forward", None)

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._num_open -= 1
            if self._num_open == 0:
                _alive(self._behind).__dict__["forward"] = self._forward


def _refuse_hooks(module: nn.Module) -> None:
    """`forward` runs none, a call does."""
    if any((*forward_hooks(module), *backward_hooks(module))):
        raise Unsupported(
            f"{type(module).__name__}.forward was called, which leaves out the hooks that the module has, and a budget"
            " is kept by the call that runs them. Call the module itself, remove the hooks, or call the plain model's"
            " forward."
        )


def _alive(behind: weakref.ref[nn.Module]) -> nn.Module:
    module = behind()
    assert module is not None, "an attribute of a module was called after the module was gone"
    return module


def _marked(function: Callable[..., Any]) -> Callable[..., Any]:
    function.is_vdnn = True  # type: ignore[attr-defined]
    return function
