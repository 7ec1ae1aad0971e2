"""A plan that somebody changed is refused, or trains with equal gradients inside its budget.

Enters: saved plans of one small step by every kind of strategy, changed at random. What still loads and fits is put to
work by the whole pipeline; plans that come to the same decisions are trained once. How files are read is in
`tests/pure/test_mutated_files.py`.
"""

from __future__ import annotations

import copy
import json
from collections import Counter
from functools import cache
from random import Random
from typing import Any

import pytest
import torch
from capture_once import captured_once
from equivalence import assert_same, executors, train
from tiers import DISK
from torch import Tensor, nn

import vdnn
from larger import larger
from pure.mutations import many, mutated
from vdnn.errors import ForeignPlan, InvalidFile
from vdnn.plan import Plan, from_json, to_json
from vdnn.plan.files.saved import fitting_plan

pytestmark = pytest.mark.any_device

ASKED: tuple[dict[str, Any], ...] = (
    {"strategy": "offload", "budget": "88%"},
    {"strategy": "recompute-memory", "budget": "100%"},
    {"strategy": "gist", "budget": "500%"},
    {"strategy": "auto", "budget": "85%"},
    {"strategy": "superneurons", "budget": "88%"},
)


@cache
def network() -> nn.Module:
    """With all that plans have to be careful with: statistics, random numbers, masks, windows."""
    torch.manual_seed(0)
    first = (nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.3))
    second = (nn.Conv2d(8, 8, 3, padding=1), nn.Tanh(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4))
    return nn.Sequential(*first, *second)


def images() -> tuple[Tensor]:
    torch.manual_seed(1)
    return (torch.randn(8, 3, 16, 16),)


def step_of(model: nn.Module) -> Any:
    return lambda x: model(x).square().mean()


def documents() -> list[tuple[Plan, Any]]:
    plans = [vdnn.plan(step_of(network()), images(), hardware=DISK, **asked) for asked in ASKED]
    return [(plan, json.loads(json.dumps(to_json(plan)))) for plan in plans]


def changed(document: Any, chance: Random) -> Any:
    """At any place, or among the decisions, which are what is taken of a plan."""
    if chance.random() < 0.5:
        return mutated(document, chance)
    return {**document, "decisions": mutated(document["decisions"], chance)}


def assert_trains_alike(plan: Plan, expected: Any) -> None:
    model = copy.deepcopy(network())
    virtual = vdnn.virtualize(step_of(model), images(), plan=plan, hardware=DISK)
    assert_same(expected, train(virtual, model, images(), steps=1))
    (executor,) = executors(virtual)
    measured, budget_nbytes = executor.measured.timeline, plan.problem.budget_nbytes
    assert measured is not None
    assert budget_nbytes is None or measured.peak_nbytes <= budget_nbytes


@pytest.mark.parametrize("count", [300, *larger(10_000)])
@pytest.mark.timeout(3000)
def test_a_mutated_plan_is_refused_or_trains_alike_within_its_budget(count: int) -> None:
    outcomes: Counter[str] = Counter()
    plain = copy.deepcopy(network())
    expected = train(step_of(plain), plain, images(), steps=1)
    with captured_once("mutated plans", 8):
        saved, trained = documents(), set()
        for chance in many(count, seed=7):
            original, document = chance.choice(saved)
            try:
                plan = from_json(changed(document, chance))
                fitting = fitting_plan(plan, original.problem)
            except (InvalidFile, ForeignPlan) as refusal:
                outcomes[type(refusal).__name__] += 1
                continue
            outcomes["fits"] += 1
            key = (frozenset(fitting.decisions), fitting.problem.budget_nbytes)
            if key not in trained:
                trained.add(key)
                assert_trains_alike(plan, expected)
                outcomes["trained"] += 1
    assert min(outcomes[name] for name in ("InvalidFile", "ForeignPlan", "trained")) > count // 100, outcomes
    assert outcomes["fits"] > count // 20, outcomes
