"""Train a step in another form than the traced one, and look at that form without running it.

Enters: a step, the name of a form, and options of `virtualize`. Leaves: the virtualized step, or the lowered graph of
the form. The rest of vdnn is as it is: the form takes the place of the joint graph where AOTAutograd hands it over.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from equivalence import virtualize
from torch import Tensor, fx

from vdnn.capture.export import export_joint, fake_step
from vdnn.capture.function_module import as_module
from vdnn.capture.inputs import describe_inputs
from vdnn.capture.lower import lower
from vdnn.capture.nodes import count_forward_outputs
from vdnn.capture.tidy.passes import tidy
from vdnn.compile import ahead_of_time, just_in_time
from vdnn.compile.forms import forms
from vdnn.compile.joint_compiler import JointCompiler
from vdnn.cost.roofline import roofline
from vdnn.hardware.presets import preset
from vdnn.ir import Graph
from vdnn.plan.model.bounds import minimum_budget
from vdnn.plan.model.problem import Problem


@dataclass
class FormCompiler(JointCompiler):
    """Compiles the named form of what it is given."""

    form: str = ""

    def partition(self, joint: fx.GraphModule, _: Any, *, num_fwd_outputs: int, **__: Any) -> Any:
        offered = {form.name: form for form in forms(joint, num_fwd_outputs, exact=False, plain=self.plain_inputs)}
        return super().partition(offered[self.form].make(), _, num_fwd_outputs=num_fwd_outputs)


@contextlib.contextmanager
def forming(monkeypatch: pytest.MonkeyPatch, form: str) -> Iterator[None]:
    """While open, every step that is captured is captured in the named form."""
    with monkeypatch.context() as patched:
        for way_in in (ahead_of_time, just_in_time):
            patched.setattr(way_in, "JointCompiler", partial(FormCompiler, form=form))
        yield


def in_form(monkeypatch: pytest.MonkeyPatch, form: str, step: Callable[..., Any], args: Any, **options: Any) -> Any:
    """The step, virtualized ahead of time in the named form."""
    with forming(monkeypatch, form):
        return virtualize(step, sample=args, **options)


@contextlib.contextmanager
def joint_of(step: Callable[..., Any], args: tuple[Tensor, ...]) -> Iterator[fx.GraphModule]:
    """The traced joint graph of a step, on fake tensors."""
    module = as_module(step)
    with contextlib.ExitStack() as stack:
        fake_args, fake_kwargs = stack.enter_context(fake_step(module, args, {}))
        yield export_joint(stack, module, fake_args, fake_kwargs, exact=False).graph_module


def lowered(joint: fx.GraphModule, num_forward_outputs: int) -> Graph:
    tidied = tidy(joint)
    return lower(tidied, describe_inputs(tidied.graph, ()), num_forward_outputs).graph


def graphs_of_forms(
    step: Callable[..., Any], args: tuple[Tensor, ...], *, exact: bool = False, only: str = ""
) -> dict[str, Graph]:
    """Every form by name, or only the one of that name, and the traced one as "traced"."""
    with joint_of(step, args) as joint:
        count = count_forward_outputs(joint.graph)
        offered = forms(joint, count, exact=exact)
        graphs = {"traced": lowered(joint, count)}
        wanted = (form for form in offered if only in ("", form.name))
        return graphs | {form.name: lowered(form.make(), count) for form in wanted}


def offered_names(step: Callable[..., Any], args: tuple[Tensor, ...]) -> list[str]:
    with joint_of(step, args) as joint:
        return [form.name for form in forms(joint, count_forward_outputs(joint.graph), exact=False)]


def least_nbytes(graph: Graph) -> int:
    """The smallest budget that offloading can keep to."""
    hardware = preset("titan-x")
    return minimum_budget(Problem(graph, roofline(graph, hardware), hardware))[0]
