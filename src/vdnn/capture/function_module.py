"""Find the modules that a function trains, so that it can be captured as if it were a module.

Enters: a module, or a function that closes over modules (`def step(x, y): return loss(model(x), y)`). Leaves: a module
whose parameters are all parameters the function can reach: through its closure, its globals, its bound object, its
defaults and partial arguments.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, MethodType
from typing import Any

from torch import nn


class FunctionModule(nn.Module):
    """A function with the modules it uses as submodules. Calling it calls the function."""

    def __init__(self, function: Callable[..., Any], owned: dict[str, nn.Module]) -> None:
        super().__init__()
        self._function = function
        for name, module in owned.items():
            self.add_module(name, module)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)


def as_module(model: Callable[..., Any]) -> nn.Module:
    if isinstance(model, nn.Module):
        return model
    owned: dict[str, nn.Module] = {}
    for name, module in _reachable(model, set()):
        if not any(module is known for known in owned.values()):
            owned[_free_name(name, owned)] = module
    inner = {id(part) for module in owned.values() for part in module.modules() if part is not module}
    return FunctionModule(model, {name: module for name, module in owned.items() if id(module) not in inner})


def _free_name(name: str, taken: dict[str, nn.Module]) -> str:
    candidates = (name if attempt == 0 else f"{name}_{attempt}" for attempt in range(len(taken) + 1))
    return next(candidate for candidate in candidates if candidate not in taken)


def _reachable(thing: Any, seen: set[int]) -> Iterator[tuple[str, nn.Module]]:
    """(name, module) for every module that calling `thing` may use."""
    if id(thing) in seen:
        return
    seen.add(id(thing))
    if isinstance(thing, functools.partial):
        yield from _named(("partial", part) for part in (thing.func, *thing.args, *thing.keywords.values()))
        for part in (thing.func, *thing.args, *thing.keywords.values()):
            yield from _reachable(part, seen)
    elif isinstance(thing, MethodType):
        yield from _named([("self", thing.__self__)])
        yield from _reachable(thing.__func__, seen)
    elif isinstance(thing, FunctionType):
        variables = list(_variables(thing))
        yield from _named(variables)
        for _, value in variables:
            if isinstance(value, (FunctionType, MethodType, functools.partial)):
                yield from _reachable(value, seen)
    elif not isinstance(thing, (type, nn.Module)) and hasattr(thing, "__dict__"):
        yield from _named(vars(thing).items())


def _named(variables: Any) -> Iterator[tuple[str, nn.Module]]:
    for name, value in variables:
        if isinstance(value, nn.Module):
            yield name, value
        elif isinstance(value, (list, tuple)):
            yield from ((f"{name}_{i}", item) for i, item in enumerate(value) if isinstance(item, nn.Module))


def _variables(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Everything a function names and does not make itself."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # an empty cell: the variable is assigned later
            continue
    for name in _global_names(function.__code__):
        if name in function.__globals__:
            yield name, function.__globals__[name]
    yield from enumerate_defaults(function)


def enumerate_defaults(function: FunctionType) -> Iterator[tuple[str, Any]]:
    for position, value in enumerate(function.__defaults__ or ()):
        yield f"default_{position}", value
    yield from (function.__kwdefaults__ or {}).items()


def _global_names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:  # functions defined inside
        if isinstance(constant, CodeType):
            yield from _global_names(constant)
