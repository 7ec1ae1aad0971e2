"""What a model asks of its batch, and answers with a branch: `if mask.all()`. Asked of the real batch, and guarded.

Enters: the truth value that Python wants while Dynamo captures, as a node of the graph so far. Leaves: the `Question`,
a small program from inputs of the graph to that truth, or None. Who captures asks it of the tensors at hand, captures
the branch that eager mode takes, and has it asked again before each later call (`torch_private.py`): another answer is
another capture, as another shape is.

The one idea: a branch that the batch decides is known before the step begins, so it needs no break. A branch that
parameters decide is not: they change with every step, and to ask would be to run the model twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from vdnn.torch_private import TorchDispatchMode, num_writes, without_modes
from vdnn.units import MiB

MAX_OPS = 64
"""A question has a handful: transformers' about packed sequences has nine. More are a part of the model."""

MAX_NBYTES = 64 * MiB
"""Of all that a question makes. It is asked before a step begins, when no feature map is alive yet."""


@dataclass(frozen=True)
class Question:
    """`program` takes real tensors in the order of `inputs`, placeholders of the graph that asks."""

    program: fx.GraphModule
    inputs: tuple[fx.Node, ...]

    def __call__(self, *tensors: torch.Tensor) -> bool | None:
        """None: nobody can say without drawing random numbers."""
        try:
            with without_modes(), torch.no_grad(), _NothingIsDrawn():
                return bool(self.program(*tensors))
        except _Draws:
            return None


def question_about(asked: fx.Node) -> Question | None:
    """What decides the truth of this node, if that is the batch alone, unwritten and in few ops."""
    nodes = _behind(asked)
    if nodes is None or not all(map(_can_be_asked, nodes)) or sum(map(_nbytes, nodes)) > MAX_NBYTES:
        return None
    if torch.is_autocast_enabled(_tensor(asked).device.type) and any(_tensor(n).is_floating_point() for n in nodes):
        return None  # asked outside of it, another type would be compared
    program, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in nodes:
        copies[node] = program.node_copy(node, copies.__getitem__)
    program.output(copies[asked])
    return Question(fx.GraphModule({}, program), tuple(node for node in nodes if node.op == "placeholder"))


def _behind(asked: fx.Node) -> list[fx.Node] | None:
    """The node and all that it is computed from, in the order of the graph; None if that is much."""
    found, open_ = {asked}, [asked]
    while open_:
        new = set(open_.pop().all_input_nodes) - found
        found |= new
        open_ += new
        if len(found) > MAX_OPS:
            return None
    return [node for node in asked.graph.nodes if node in found]


def _can_be_asked(node: fx.Node) -> bool:
    """Nothing that a step trains, and nothing that was written to since the step began."""
    is_known = node.op in ("placeholder", "call_function", "call_method")
    tensor = node.meta.get("example_value")
    return is_known and isinstance(tensor, torch.Tensor) and not tensor.requires_grad and num_writes(tensor) == 0


def _tensor(node: fx.Node) -> torch.Tensor:
    tensor: torch.Tensor = node.meta["example_value"]
    return tensor


def _nbytes(node: fx.Node) -> int:
    return 0 if node.op == "placeholder" else _tensor(node).numel() * _tensor(node).element_size()


class _Draws(Exception):
    """Random numbers drawn for a question would be missing in the step."""


class _NothingIsDrawn(TorchDispatchMode):
    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in op.tags:
            raise _Draws
        return op(*args, **(kwargs or {}))
