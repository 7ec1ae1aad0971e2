"""One training step captured and planned, without running or allocating it.

Enters: a model or a function, its arguments (meta tensors are welcome), the user's options. Leaves: a plan, or the
problem that a plan would answer.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from vdnn.capture.export import check_sample, export_joint, fake_step
from vdnn.capture.function_module import as_module
from vdnn.capture.nodes import count_forward_outputs
from vdnn.compile.pipeline import describe_step, plan_step
from vdnn.compile.traced_step import TracedStep
from vdnn.hardware.where import where_of
from vdnn.options import Options
from vdnn.plan.model.problem import Problem
from vdnn.plan.plan import Plan
from vdnn.printable import printable
from vdnn.runtime.step_memory import surroundings_on
from vdnn.torch_private import tree_leaves


def plan_of(model: Callable[..., Any], args: Any, kwargs: Mapping[str, Any], options: Options) -> Plan:
    """The plan that `virtualize` would follow, in whichever form of the step is best."""
    with captured_step(model, args, kwargs) as step:
        return plan_step(step, replace(options, replan=False)).plan


def problem_of(model: Callable[..., Any], args: Any, kwargs: Mapping[str, Any], options: Options) -> Problem:
    """What a plan of the step as it was traced decides about, with its costs."""
    with captured_step(model, args, kwargs) as step:
        return describe_step(step, replace(options, replan=False)).problem


@contextlib.contextmanager
def captured_step(model: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]) -> Iterator[TracedStep]:
    """One training step as a joint graph. Nothing is run or allocated."""
    sample = check_sample(args, kwargs)
    module = as_module(model)
    with contextlib.ExitStack() as stack:
        where = where_of(_named_tensors(module, (sample, kwargs)))
        fake_args, fake_kwargs = stack.enter_context(fake_step(module, sample, kwargs, device=where))
        joint = export_joint(stack, module, fake_args, fake_kwargs, exact=False).graph_module
        num_outputs = count_forward_outputs(joint.graph)
        yield TracedStep(joint, num_outputs, (), name_of(model), surroundings=surroundings_on(where), where=where)


def _named_tensors(module: nn.Module, given: Any) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()
    for number, leaf in enumerate(tree_leaves(given)):
        if isinstance(leaf, torch.Tensor):
            yield f"argument {number}", leaf


def name_of(model: Any) -> str:
    """What people call it, as it may be shown."""
    named = type(model) if isinstance(model, nn.Module) else model
    return printable(getattr(named, "__name__", type(model).__name__))
