"""From a half of a planned step to the `Program` that runs.

Enters: a half, or a graph without backward. Leaves: a function of one list, which it empties, and the same with a call
before every instruction, for a run that is watched or timed. What is kept is the text of the half (`source.py`), not
its graph.
"""

from __future__ import annotations

from functools import partial

from torch import fx

from vdnn.capture.nodes import tensors_of
from vdnn.rewrite.halves import Half
from vdnn.rewrite.source import Mark, Source, Speller, source_of
from vdnn.runtime.edition import Boxed, Program
from vdnn.runtime.running_step import mark, saw
from vdnn.runtime.traced_layouts import TracedLayout, expect
from vdnn.torch_private import HigherOrderOperator


def program(half: Half) -> Program:
    constants = (getattr(half.module, str(node.target), None) for node in half.module.graph.find_nodes(op="get_attr"))
    # A tracker of tensors has no rule for ops that run whole programs, or that are ordered by tokens.
    is_watchable = not any(isinstance(node.target, HigherOrderOperator) for node in half.module.graph.nodes)
    source = source_of(half.module, half.name, partial(_mark_of, half))
    return Program(source.function(), partial(_marked, source), tuple(constants), is_watchable)


def boxed(module: fx.GraphModule, name: str = "inference") -> Boxed:
    """Such a function of any graph module."""
    return source_of(module, name).function()


def _marked(source: Source, *, checked: bool = True) -> Boxed:
    """The same lines in the same order, each instruction announced before it runs and, if `checked`, each op's result
    looked at after."""
    return source.function(marked=True, checked=checked)


def _mark_of(half: Half, node: fx.Node, speller: Speller) -> Mark | None:
    if node not in half.position_of:
        return None
    before, layouts = f"{speller.named(mark)}({half.position_of[node]})", _layouts(node)
    if all(layout is None for layout in layouts):
        return Mark(before)
    looks = f"{speller.named(expect)}({node.name}, {speller.named(layouts)}, {str(node.target)!r})"
    return Mark(before, f"{looks}; {speller.named(saw)}({node.name})")


def _layouts(node: fx.Node) -> tuple[TracedLayout | None, ...]:
    return tuple(
        None if tensor is None else (tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype)
        for tensor in tensors_of(node)
    )
