"""The networks of the papers as PyTorch has them, for tables that are about real steps and not about lists of layers.

Enters: a name of the zoo and a batch. Leaves: the planner's problem, captured on meta tensors without memory; or what
share of a network's activations is zero, for which it runs once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from vdnn.api import plan
from vdnn.models import load
from vdnn.plan.model.problem import Problem


def problem_of(name: str, batch: int, device: str) -> Problem:
    """One training step of the named network on a device that is not in the room."""
    workload = load(name, batch, device="meta")
    return plan(workload.step, workload.args, hardware=device, strategy="keep-all").problem


def relu_densities(name: str, batch: int = 2, seed: int = 0) -> list[float]:
    """The share of elements that are not zero after each ReLU, in order: fresh weights, random images."""
    torch.manual_seed(seed)
    workload = load(name, batch)
    found: list[float] = []

    def look(module: nn.Module, args: Any, output: torch.Tensor) -> None:
        found.append(float(output.count_nonzero()) / output.numel())

    for module in workload.model.modules():
        if isinstance(module, nn.ReLU):
            module.register_forward_hook(look)
    with torch.no_grad():
        workload.step(*workload.args)
    return found
