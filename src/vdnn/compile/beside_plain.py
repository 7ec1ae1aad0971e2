"""How far a step is off whose trace has other last bits than eager mode: measured once, beside plain PyTorch.

Enters: a step that was captured ahead of time, and what runs plain. Leaves: the step; its first call is measured before
it runs. Both run forward and backward on the same batch from the same generators, with ones as the gradients of what
they return, and leave buffers and generators as they found them. Only where no budget was named: with one, such a model
keeps eager's bits in a tensor cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from vdnn.plan.model.findings import GradientError
from vdnn.runtime.gradient_error import difference
from vdnn.runtime.random_states import random_states, set_random_states
from vdnn.torch_private import tree_leaves


def measured_beside_plain(
    step: Callable[..., Any], plain: Callable[..., Any], module: nn.Module, tell: Callable[[GradientError], None]
) -> Callable[..., Any]:
    """`step`; before its first call with gradients `tell` hears how far it is off `plain`."""
    to_measure = [True]

    def measured(*args: Any, **kwargs: Any) -> Any:
        if to_measure and torch.is_grad_enabled():
            to_measure.clear()
            names, parameters = zip(*((n, p) for n, p in module.named_parameters() if p.requires_grad), strict=True)
            exact = _gradients(plain, module, parameters, args, kwargs)
            tell(difference(names, _gradients(step, module, parameters, args, kwargs), exact))
        return step(*args, **kwargs)

    return measured


def _gradients(
    run: Callable[..., Any], module: nn.Module, parameters: Sequence[nn.Parameter], args: Any, kwargs: Any
) -> tuple[torch.Tensor | None, ...]:
    states = random_states((*parameters, *tree_leaves((args, kwargs))))
    buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
    returned = [leaf for leaf in tree_leaves(run(*args, **kwargs)) if isinstance(leaf, torch.Tensor)]
    outputs = [tensor for tensor in returned if tensor.requires_grad]
    found = torch.autograd.grad(outputs, parameters, [torch.ones_like(one) for one in outputs], allow_unused=True)
    with torch.no_grad():
        for buffer, before in buffers:
            buffer.copy_(before)
    set_random_states(states)
    return found
