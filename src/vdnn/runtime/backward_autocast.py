"""Backward is computed outside of autocast, as it was traced; who asks for another one is told so.

Enters: what a captured forward returned. Leaves: the same, with a look at the settings before its backward. Plain
PyTorch runs the ops of a backward under the autocast in which `backward()` is called, so that their types depend on it.
A trace has one answer, and AOTAutograd leaves autocast before our code runs: autograd's hooks still see it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from vdnn.errors import Unsupported
from vdnn.torch_private import tree_leaves


def refusing_backward_in_autocast(forward: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(forward)
    def run(*args: Any, **kwargs: Any) -> Any:
        outputs = forward(*args, **kwargs)
        nodes = {leaf.grad_fn: leaf.device.type for leaf in tree_leaves(outputs) if isinstance(leaf, torch.Tensor)}
        for node, device_type in nodes.items():
            if node is not None:
                node.register_prehook(_refuse_on_cpu if device_type == "cpu" else _refusing(device_type))
        return outputs

    return run


def _refusing(device_type: str) -> Callable[[Any], None]:
    def refuse(_: Any) -> None:
        if torch.is_autocast_enabled(device_type):
            raise Unsupported(
                "backward was called inside torch.autocast, where plain PyTorch computes it in the narrow type, and a"
                " virtualized model has only the backward outside of autocast, which is the one that PyTorch"
                " recommends. Move loss.backward() behind the autocast block; the forward stays inside."
            )

    return refuse


_refuse_on_cpu = _refusing("cpu")
