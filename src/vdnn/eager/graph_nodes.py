"""Nodes of autograd's graph, and something that is called before backward runs each of them.

Enters: tensors, and a function. Leaves: hooks on all nodes behind the tensors. A node of a step dies with the graph and
takes its hook along; those that add up the gradient of a leaf live as long as the leaf, so their hooks have handles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

_HOOKED = "vdnn.before_each_node"

_ASK_WHO_WATCHES = ("ProdBackward", "CumprodBackward")
"""Nodes that compute in another way, with other last bits, where any dispatch mode is active. They stay unwatched: what
they make is counted when the next node reads it."""


def before_each_node(outputs: Iterable[torch.Tensor], call: Callable[..., None]) -> list[RemovableHandle]:
    """`call` runs before each node that may be watched, once however many outputs lead there. The handles are those of
    leaves."""
    of_leaves: list[RemovableHandle] = []
    waiting = [output.grad_fn for output in outputs if output.grad_fn is not None]
    seen: set[Any] = set(waiting)
    while waiting:
        node: Any = waiting.pop()  # torch declares its `metadata` as a method, and it is a dict
        is_of_leaf = hasattr(node, "variable")
        may_be_watched = not node.name().startswith(_ASK_WHO_WATCHES)
        if may_be_watched and (is_of_leaf or _HOOKED not in node.metadata):
            handle = node.register_prehook(call)
            node.metadata[_HOOKED] = True
            of_leaves += [handle] if is_of_leaf else []
        following = [behind for behind, _ in node.next_functions if behind is not None and behind not in seen]
        seen.update(following)
        waiting += following
    return of_leaves
