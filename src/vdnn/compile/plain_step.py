"""One step of a model as plain PyTorch computes it, beside the model: nothing that is the user's notices.

Enters: a callable with what it was given, the random states and buffers from before. Leaves: its outputs, gradients,
buffers and random states. The one idea: **another model of the same memory**. Parameters and arguments are looked at
through new leaves, so that no gradient is accumulated and no hook of a tensor is called; buffers are copies; the
generators and the plain attributes of modules are put back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from vdnn.hardware.where import CPU
from vdnn.runtime.random_states import random_state, set_random_state
from vdnn.torch_private import num_writes, tree_leaves, tree_map, without_torch_dispatch

RandomStates = dict[torch.device, Tensor]


@dataclass(frozen=True)
class Given:
    """What a step begins with. Copies are held by the host, where an accelerator's plan does not count them."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    buffers: Mapping[str, Tensor]
    random: RandomStates
    modes: Sequence[tuple[str, torch.dtype, bool]]
    """Autocast: device, type, whether it is on."""

    writes: Sequence[tuple[str, Tensor, int]]
    """Parameters and arguments, and how often each was written to."""

    @classmethod
    def of(cls, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], where: torch.device) -> Given:
        given = [(f"argument {number}", tensor) for number, tensor in enumerate(tensors_in((args, kwargs)))]
        fixed = [*module.named_parameters(), *given]
        return cls(
            args,
            kwargs,
            copies_of(module),
            random_states(where),
            [(k, torch.get_autocast_dtype(k), torch.is_autocast_enabled(k)) for k in {CPU.type, where.type}],
            [(name, tensor, num_writes(tensor)) for name, tensor in fixed],
        )

    def changed(self, module: nn.Module) -> str:
        """What has been written to since, or is another one; empty: nothing."""
        now = dict(module.named_parameters())
        return next(
            (
                name
                for name, tensor, count in self.writes
                if num_writes(tensor) != count or now.get(name, tensor) is not tensor
            ),
            "",
        )


@dataclass(frozen=True)
class PlainStep:
    outputs: list[Any]
    gradients: Sequence[Tensor | None]
    buffers: Mapping[str, Tensor]
    random: RandomStates


def run_plain(
    plain: Callable[..., Any],
    module: nn.Module,
    given: Given,
    wanted: Sequence[Tensor],
    tangents: Sequence[Tensor | None],
) -> PlainStep:
    """Forward and backward. `tangents` are those of the tensors among the outputs; gradients are those of `wanted`."""
    where = next(iter(given.random.keys() - {CPU}), CPU)
    twins: dict[int, Tensor] = {}

    def twin(thing: Any) -> Any:
        if not isinstance(thing, Tensor) or not thing.requires_grad:
            return thing
        return twins.setdefault(id(thing), thing.detach().requires_grad_())

    state: dict[str, Tensor] = {
        **{f"inner.{name}": twin(held) for name, held in module.named_parameters(remove_duplicate=False)},
        **{f"inner.{name}": _back(copy, module.get_buffer(name)) for name, copy in given.buffers.items()},
    }
    now = random_states(where)
    with ExitStack() as stack:
        stack.enter_context(_attributes_kept(module))
        stack.callback(set_random_states, now)
        stack.enter_context(torch.enable_grad())
        set_random_states(given.random)
        with ExitStack() as modes:
            for kind, dtype, is_on in given.modes:
                modes.enter_context(torch.autocast(kind, dtype=dtype, enabled=is_on))
            args, kwargs = tree_map(twin, (given.args, given.kwargs))
            returned = functional_call(_Around(plain, module), state, args, kwargs)
        outputs, random = tree_leaves(returned), random_states(where)
        tensors = [leaf for leaf in outputs if isinstance(leaf, Tensor)]
        pairs = [(output, tangent) for output, tangent in zip(tensors, tangents, strict=True) if tangent is not None]
        leaves = [twins.get(id(tensor), tensor) for tensor in wanted]
        outs = [output for output, _ in pairs]
        gradients = torch.autograd.grad(outs, leaves, [tangent for _, tangent in pairs], allow_unused=True)
    buffers = {name: state[f"inner.{name}"] for name in given.buffers}
    return PlainStep([_detached(leaf) for leaf in outputs], gradients, buffers, random)


class _Around(nn.Module):
    """`plain` is what calls `inner`, as it was before it was virtualized."""

    def __init__(self, plain: Callable[..., Any], inner: nn.Module) -> None:
        super().__init__()
        self.inner, self._plain = inner, plain

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._plain(*args, **kwargs)


@contextmanager
def _attributes_kept(module: nn.Module) -> Iterator[None]:
    """A forward that counts its calls counts this one too."""
    before = [(part, dict(vars(part))) for part in module.modules()]
    try:
        yield
    finally:
        for part, held in before:
            for name in vars(part).keys() - held.keys():
                del vars(part)[name]
            vars(part).update(held)


def _detached(leaf: Any) -> Any:
    return leaf.detach() if isinstance(leaf, Tensor) else leaf


def _back(copy: Tensor, buffer: Tensor) -> Tensor:
    with without_torch_dispatch():
        return copy.to(buffer.device, copy=True)


def tensors_in(things: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(things) if isinstance(leaf, Tensor)]


def copies_of(module: nn.Module) -> dict[str, Tensor]:
    """Of its buffers, by every name."""
    with torch.no_grad(), without_torch_dispatch():
        return {
            name: buffer.detach().to("cpu", copy=True) for name, buffer in module.named_buffers(remove_duplicate=False)
        }


def random_states(where: torch.device) -> RandomStates:
    return {device: random_state(device) for device in dict.fromkeys((CPU, where))}


def set_random_states(states: RandomStates) -> None:
    for device, state in states.items():
        set_random_state(device, state)
