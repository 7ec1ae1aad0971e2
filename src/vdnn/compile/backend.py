"""`torch.compile(model, backend="vdnn", options={"budget": "12GiB"})`: vdnn by its name in the ecosystem.

PyTorch finds `vdnn` below through the `torch_dynamo_backends` entry point of the installed package.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from vdnn.compile.just_in_time import compile_dynamo_graph
from vdnn.compile.session import Session
from vdnn.options import Options


def vdnn(graph: fx.GraphModule, inputs: Sequence[Any], *, options: dict[str, Any] | None = None) -> Callable[..., Any]:
    """A torch.compile backend. `options` takes what `vdnn.virtualize` takes: budget, strategy, device."""
    return compile_dynamo_graph(graph, inputs, Session("torch.compile", Options.parse(options or {})))
