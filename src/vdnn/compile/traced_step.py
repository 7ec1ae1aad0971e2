"""The values that the pipeline hands on: a step as it was traced, a form of it with its problem, a form with its plan.

All are frozen, and what they hold is not changed by who takes them: `joint` of a `TracedStep` stays the graph that
AOTAutograd handed over, and every form of the step is made from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import fx

from vdnn.capture.lower import InputInfo, Lowered
from vdnn.compile.seen_storages import Seen
from vdnn.cost.tried import Trials
from vdnn.hardware.where import CPU
from vdnn.plan.model.problem import Problem
from vdnn.plan.model.surroundings import ALONE, Surroundings
from vdnn.plan.plan import Plan


@dataclass(frozen=True)
class Precedent:
    """What was decided for the same model at another shape: the form, and by form what was tried of its ops."""

    form: str
    trials: Mapping[str, Trials]


@dataclass(frozen=True)
class TracedStep:
    """One training step as a joint graph. `plain_inputs` describes the inputs that AOTAutograd calls plain, by
    position, as far as somebody knows them. `seen` has the storages that earlier steps showed to be larger than
    traced, `surroundings` what else was alive with them. `precedent` is the same model at another shape, and
    `granted_nbytes` the most that a budget was at other shapes, for tensors. `num_other_nodes`: of the traces of
    other shapes, which the interpreter holds too. It computes at `where`."""

    joint: fx.GraphModule
    num_forward_outputs: int
    plain_inputs: Sequence[InputInfo]
    name: str
    seen: Seen = field(default_factory=dict)
    surroundings: Surroundings = ALONE
    precedent: Precedent | None = None
    granted_nbytes: int = 0
    num_other_nodes: int = 0
    where: torch.device = CPU


@dataclass(frozen=True)
class FormProblem:
    """A step in one form: its tidy joint graph, lowered, and the problem that a plan of it answers. `traced` is the
    step as it was traced, where this is another form of it."""

    joint: fx.GraphModule
    lowered: Lowered
    num_forward_outputs: int
    problem: Problem
    traced: FormProblem | None = None
    trials: Trials | None = None
    """Where its costs come from, and what may still be tried."""


@dataclass(frozen=True)
class PlannedStep:
    """The form in which a step runs, and its plan. `decide_s` is what deciding took, in all forms that were looked
    at."""

    form: FormProblem
    plan: Plan
    decide_s: float
