"""The user's own network: `package.module:factory`.

Enters: that name. Leaves: a `UserFactory` that makes a `Workload` like any network of the zoo. The contract is one
line long: `factory(batch)` returns `(model, args)` or `(model, args, loss_fn)`, with `args` a tensor or a tuple of
tensors and `loss_fn(output)` a scalar. Without a loss function a scalar output is the loss, and of anything else the
float tensors are summed.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from vdnn.errors import InvalidInput
from vdnn.models.spec import Workload, check_batch

CONTRACT = "a factory takes the batch and returns (model, args) or (model, args, loss_fn)"
Loss = Callable[[Any], Tensor]


@dataclass(frozen=True)
class UserFactory:
    """A function of the user's that makes a model and its sample."""

    name: str
    factory: Callable[[int], Any]

    def workload(self, batch: int) -> Workload:
        """Calls the factory on the current default device and checks what it returns."""
        check_batch(batch)
        try:
            made = self.factory(batch)
        except Exception as error:
            raise InvalidInput(f"{self.name}({batch}) raised {type(error).__name__}: {error}") from error
        model, args, loss = self.unpack(made)
        return Workload(self.name, model, args, step_of(self.name, model, loss))

    def unpack(self, made: Any) -> tuple[nn.Module, tuple[Tensor, ...], Loss | None]:
        if not isinstance(made, (tuple, list)) or len(made) not in (2, 3):
            raise InvalidInput(f"{self.name} returned {described(made)}: {CONTRACT}.")
        model, args, loss = made if len(made) == 3 else (*made, None)
        if not isinstance(model, nn.Module):
            raise InvalidInput(f"{self.name} returned {described(model)} as its model, not an nn.Module: {CONTRACT}.")
        if loss is not None and not callable(loss):
            raise InvalidInput(f"{self.name} returned {described(loss)} as its loss_fn, which cannot be called.")
        return model, self.tensors(args), loss

    def tensors(self, args: Any) -> tuple[Tensor, ...]:
        args = (args,) if isinstance(args, Tensor) else args
        if not isinstance(args, (tuple, list)) or not args:
            raise InvalidInput(f"{self.name} returned {described(args)} as args: give a tensor or a tuple of tensors.")
        for position, arg in enumerate(args):
            if not isinstance(arg, Tensor):
                raise InvalidInput(f"{self.name}: args[{position}] is {described(arg)}, not a tensor.")
        return tuple(args)

    def small(self) -> NoReturn:
        raise InvalidInput(
            f"{self.name} has no small variant: only networks of the zoo do. Let the factory make it small."
        )

    def at_image_size(self, size: int) -> NoReturn:
        raise InvalidInput(
            f"{self.name} makes its own sample: image_size={size} does not apply. Set it in the factory."
        )


def find_factory(name: str) -> UserFactory:
    """`package.module:factory`, looked up with the current directory importable, as `python -m` has it."""
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise InvalidInput(f"{name!r} is not a factory's name: write it as package.module:factory.")
    module = import_module(name, module_name)
    factory = getattr(module, attribute, None)
    if factory is None:
        raise InvalidInput(f"module {module_name!r} has no {attribute!r}. It defines: {functions_of(module)}.")
    if not callable(factory):
        raise InvalidInput(f"{name} is {described(factory)} and cannot be called: {CONTRACT}.")
    return UserFactory(name, factory)


def import_module(name: str, module_name: str) -> ModuleType:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # stays: the user's module may import its neighbours later
    try:
        return importlib.import_module(module_name)
    except Exception as error:  # whatever the user's module raises while it is imported
        raise InvalidInput(
            f"cannot import {module_name!r} for the model {name!r}: {type(error).__name__}: {error}\n"
            "Run from the directory that holds it, or put that directory on PYTHONPATH."
        ) from error


def functions_of(module: ModuleType) -> str:
    own = [key for key, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
    return ", ".join(sorted(key for key in own if callable(vars(module)[key]))) or "nothing that can be called"


def step_of(name: str, model: nn.Module, loss: Loss | None) -> Callable[..., Tensor]:
    def training_step(*args: Tensor) -> Tensor:
        output = model(*args)
        value = loss(output) if loss is not None else default_loss(name, output)
        if not isinstance(value, Tensor) or value.ndim != 0:
            raise InvalidInput(f"{name}: loss_fn returned {described(value)}, not a scalar tensor.")
        return value

    return training_step


def default_loss(name: str, output: Any) -> Tensor:
    """A scalar is the loss; of several tensors, the sum of all their elements."""
    sums = [tensor.sum() for tensor in tensors_in(output) if tensor.is_floating_point()]
    if not sums:
        raise InvalidInput(
            f"{name}: the model returned {described(output)}, which holds no float tensor to make a loss of."
        )
    return torch.stack(sums).sum() if len(sums) > 1 else sums[0]


def tensors_in(output: Any) -> Iterator[Tensor]:
    """All tensors of nested tuples, lists and mappings; Hugging Face's outputs are mappings too."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, (tuple, list, Mapping)):
        for item in output.values() if isinstance(output, Mapping) else output:
            yield from tensors_in(item)


def described(thing: Any) -> str:
    """What something is, in few words: `a tuple of 4`, `a Tensor of shape (2, 3)`, `an object of type str`."""
    if isinstance(thing, Tensor):
        return f"a Tensor of shape {tuple(thing.shape)}"
    if isinstance(thing, (tuple, list)):
        return f"a {type(thing).__name__} of {len(thing)}"
    return "None" if thing is None else f"an object of type {type(thing).__name__}"
