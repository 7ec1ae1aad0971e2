"""The callbacks that AOTAutograd calls for one captured graph. Both front ends pass exactly these.

Enters: the joint graph of a training step, or a graph without backward. Leaves: functions in AOTAutograd's boxed
convention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import fx

from vdnn.capture.inputs import where_of_step
from vdnn.capture.lower import InputInfo
from vdnn.capture.tidy.passes import tidy
from vdnn.compile.pipeline import compile_step
from vdnn.compile.session import Session
from vdnn.compile.traced_step import TracedStep
from vdnn.rewrite.boxed import boxed
from vdnn.runtime.edition import BoxedCall
from vdnn.runtime.executor import Executor
from vdnn.torch_private import TracingContext


@dataclass
class JointCompiler:
    """Four callbacks, and the executor that the first of them leaves for the others."""

    session: Session
    plain_inputs: Sequence[InputInfo]
    executor: Executor | None = field(default=None, init=False)

    def partition(
        self, joint: fx.GraphModule, _: Any, *, num_fwd_outputs: int, **__: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        seen, name = self.session.seen, self.session.next_name()
        where = where_of_step(joint.graph, self.plain_inputs)
        self.session.compute_on(where)
        step = TracedStep(
            joint,
            num_fwd_outputs,
            self.plain_inputs,
            name,
            dict(seen.nbytes),
            seen.surroundings.joined(self.session.memory.surroundings),
            self.session.precedent,
            self.session.granted_nbytes,
            self.session.num_nodes,
            where,
        )
        forward, backward, self.executor = compile_step(step, self.session)
        self.session.add(self.executor)
        return forward, backward

    def forward(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> BoxedCall:
        # Ahead of time, a step in which nothing requires a gradient comes here too, and was never partitioned.
        _donate_nothing()
        return self.inference(gm, example_inputs) if self.executor is None else self.executor.forward

    def backward(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> BoxedCall:
        assert self.executor is not None, (
            "AOTAutograd compiles a backward only after it has partitioned the joint graph"
        )
        return self.executor.backward

    def inference(self, module: fx.GraphModule, _: Sequence[Any]) -> BoxedCall:
        """A graph without backward stashes nothing: it runs as it is, letting go of every tensor at its last use."""
        return BoxedCall(boxed(tidy(module)))


def _donate_nothing() -> None:
    """What backward does to what was saved for it is between `runtime/overwritten.py` and a retained graph. AOTAutograd
    refuses retain_graph=True where it thinks that tensors are donated."""
    context = TracingContext.try_get()
    if context is not None and context.fw_metadata is not None:
        context.fw_metadata.bw_donated_idxs = []
