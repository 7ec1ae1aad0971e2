"""One op between a parameter and a loss, plain and under a strategy: its gradient must have the same bits.

Enters: a function of one tensor and an input. Leaves: nothing but assertions. The parameter is added to the input and
has its shape, so its gradient is the op's own, element by element, with the strides that the op gave it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from equivalence import SEED, executors, virtualize
from nets import Using
from torch import Tensor, nn

from vdnn.plan.model.actions import Action, Encode, EncodeOffload

BITS = {torch.float32: torch.int32, torch.float64: torch.int64, torch.bfloat16: torch.int16}


def with_shift(function: Callable[..., Any], like: Tensor, **parts: nn.Module) -> nn.Module:
    """`function(parts, input + shift)`, where the shift is zero and has a gradient."""
    return Using(lambda self, x: function(self, x + self.shift), shift=nn.Parameter(torch.zeros_like(like)), **parts)


def together(functions: Mapping[str, Callable[..., Any]], like: Tensor) -> nn.Module:
    """Many functions in one module, each of the input plus a shift of its own. The shift has the function's name, and
    so has its gradient."""

    def run(self: Any, x: Tensor) -> tuple[Any, ...]:
        return tuple(function(self, x + getattr(self, name)) for name, function in functions.items())

    return Using(run, **{name: nn.Parameter(torch.zeros_like(like)) for name in functions})


def step(model: Any, *inputs: Tensor) -> dict[str, Tensor]:
    """The loss and the gradients as autograd hands them over: `.grad` would give them the strides of the parameter."""
    torch.manual_seed(SEED)
    returned = model(*inputs)
    outputs = [t for t in (returned if isinstance(returned, tuple) else (returned,)) if t.requires_grad]
    loss = torch.stack([(output * weights(output)).sum() for output in outputs]).sum()
    names, parameters = zip(*model.named_parameters(), strict=True)
    gradients = torch.autograd.grad(loss, parameters)
    return {"loss": loss.detach(), **dict(zip(names, gradients, strict=True))}


def weights(output: Tensor) -> Tensor:
    """No two elements share one, and they lie in memory as the output does."""
    numbers = torch.linspace(-1, 1, max(output.numel(), 1), dtype=output.dtype)[: output.numel()]
    return torch.empty_like(output).copy_(numbers.view(output.shape))


def difference(plain: Tensor, virtual: Tensor) -> str:
    """Empty when shape, strides and bits are the same; which NaN it is does not matter."""
    if (plain.shape, plain.stride(), plain.dtype) != (virtual.shape, virtual.stride(), virtual.dtype):
        return f"{plain.shape} {plain.stride()} {plain.dtype} / {virtual.shape} {virtual.stride()} {virtual.dtype}"
    numbers = ~plain.isnan()
    if not torch.equal(numbers, ~virtual.isnan()):
        return "one is not a number where the other is"
    ours, theirs = (t[numbers].view(BITS[t.dtype]) for t in (plain, virtual))
    return "" if torch.equal(ours, theirs) else f"{int((ours != theirs).sum())} of {ours.numel()} elements differ"


def assert_same_bits(plain: dict[str, Tensor], virtual: dict[str, Tensor]) -> None:
    found = {name: difference(plain[name], virtual[name]) for name in plain}
    assert not any(found.values()), found


def trained(model: nn.Module, *inputs: Tensor, **options: Any) -> Any:
    """The virtualized model, after two steps that had the plain model's bits: one watched, one at full speed."""
    plain = copy.deepcopy(model)
    virtual = virtualize(model, sample=inputs, **({"strategy": "gist"} | options))
    expected = step(plain, *inputs)
    for _ in range(2):
        assert_same_bits(expected, step(virtual, *inputs))
    return virtual


def actions_of(virtual: Any) -> dict[str, Action]:
    """What the plan does, by storage name."""
    (executor,) = executors(virtual)
    storages = executor.plan.problem.graph.storages
    return {storages[d.storage].name: d.action for d in executor.plan.decisions}


def encodings_of(virtual: Any) -> dict[str, str]:
    """Codecs by storage name: "sign-mask" where the encoding is decoded, "sign-mask, read" where it is read as it
    is."""
    found = {name: action for name, action in actions_of(virtual).items() if isinstance(action, Encode | EncodeOffload)}
    return {name: action.codec + (", read" if action.direct else "") for name, action in found.items()}
