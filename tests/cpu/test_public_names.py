"""`vdnn.plan` and `vdnn.report` are functions, and packages.

Note: [Two names that are packages and functions] in vdnn/__init__.py
"""

from __future__ import annotations

import torch
from torch import nn

import vdnn
import vdnn.plan.judge.simulate
import vdnn.report.record


def test_plan_is_a_function_after_its_modules_were_imported() -> None:
    plan = vdnn.plan(nn.Linear(4, 2), (torch.randn(3, 4),), hardware="titan-x")
    assert isinstance(plan, vdnn.plan.Plan)


def test_report_is_a_function_after_its_modules_were_imported() -> None:
    model = nn.Linear(4, 2)
    step = vdnn.virtualize(lambda images: model(images).sum(), hardware="titan-x")
    step(torch.randn(3, 4)).backward()
    assert isinstance(vdnn.report(step), vdnn.report.record.Report)


def test_the_zoo_is_reached_through_the_package() -> None:
    assert "vgg16" in vdnn.models.names()
