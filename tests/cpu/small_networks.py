"""Networks of the zoo at toy widths, each with what plain PyTorch makes of its first three steps, built once."""

from __future__ import annotations

import copy
from functools import cache

import torch
from equivalence import Outcome, train
from torch import Tensor, nn

from vdnn.models import MODELS, ModelSpec

BATCH = 2


@cache
def small_network(name: str, steps: int = 3) -> tuple[ModelSpec, nn.Module, tuple[Tensor, ...], Outcome]:
    """A network, its sample, and the outcome of plain training. Train a copy of the model: it serves many tests.

    Captures of its step go by the name `captured_once(name, BATCH)`."""
    torch.manual_seed(0)
    spec = MODELS[name].small()
    model, args = spec.build(), spec.sample(BATCH)
    plain = copy.deepcopy(model)
    return spec, model, args, train(spec.step(plain), plain, args, steps)
