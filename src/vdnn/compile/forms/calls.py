"""Calls written into a joint graph.

Enters: a joint graph that is ours to change (`capture/copied_graph.py`). Leaves: new calls in it, each with the fake
tensors that the tracer would have seen it return. The one idea: what a call returns is found by running it on fake
tensors, never worked out by hand, so shapes, strides and aliases of a rewritten graph are PyTorch's own.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from vdnn.capture.nodes import copy_meta, fake_mode_of, set_value, value_of


class Caller:
    """Writes calls into a graph. `like` names the node that a call stands for: its phase and its module are the
    call's."""

    def __init__(self, graph: fx.Graph, traced: fx.Graph) -> None:
        self.graph = graph
        self._mode = fake_mode_of(traced)

    def like(self, node: fx.Node, target: Any, *args: Any, name: str | None = None, **kwargs: Any) -> fx.Node:
        """A call that returns what `node` returns."""
        call = self.graph.create_node("call_function", target, args, kwargs, name)
        copy_meta(node, call)
        return call

    def call(self, like: fx.Node, target: Any, *args: Any, name: str | None = None, **kwargs: Any) -> fx.Node:
        node = self.like(like, target, *args, name=name, **kwargs)
        set_value(node, self._run(target, args, kwargs))
        return node

    def getitem(self, source: fx.Node, position: int, like: fx.Node, name: str | None = None) -> fx.Node:
        node = self.like(like, operator.getitem, source, position, name=name)
        set_value(node, value_of(source)[position])
        return node

    def _run(self, target: Any, args: Any, kwargs: Any) -> Any:
        args, kwargs = fx.map_arg((args, kwargs), value_of)
        with self._mode, torch.no_grad():
            return target(*args, **kwargs)
