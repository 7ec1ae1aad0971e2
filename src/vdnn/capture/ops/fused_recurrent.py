"""oneDNN's fused recurrent layer, so that it makes its workspace in a program that autograd does not see.

Enters: a joint graph. Leaves: the same graph, in which the layer is called by an op of our own. The one idea: PyTorch's
kernel makes what its backward reads only while gradients are recorded, and AOTAutograd runs programs with gradients
off. Our op has the same schema, and asks the same kernel as if they were on, below autograd.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from vdnn.capture.ops.overloads import overload
from vdnn.torch_private import below_autograd, schema_of

HAS_FUSED_LAYERS = torch.backends.mkldnn.is_available()
"""Whether this build of PyTorch has oneDNN, and with it the op."""

_LIBRARY = torch.library.Library("vdnn", "FRAGMENT")


def _run(*args: Any) -> Any:
    with below_autograd(), torch.enable_grad():
        return torch.ops.aten.mkldnn_rnn_layer(*args)


if HAS_FUSED_LAYERS:
    FUSED_LAYER = overload("mkldnn_rnn_layer", "default")
    _LIBRARY.define(str(schema_of(FUSED_LAYER)).removeprefix("aten::"))
    _LIBRARY.impl("mkldnn_rnn_layer", _run, "CPU")


def make_workspaces(graph: fx.Graph) -> None:
    """Call the fused layers by our op."""
    if HAS_FUSED_LAYERS:
        for node in graph.find_nodes(op="call_function", target=FUSED_LAYER):
            node.target = torch.ops.vdnn.mkldnn_rnn_layer.default
