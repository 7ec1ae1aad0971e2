"""Random programs at random budgets: gradients as in plain PyTorch, no step above its budget, the first included."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
import torch
from equivalence import differences, executors, gradients, virtualize
from random_programs import Program, program_images
from torch import Tensor, nn

from larger import larger
from vdnn.errors import InexactTrace, Infeasible
from vdnn.hardware.presets import preset

pytestmark = pytest.mark.any_device

DEVICE = preset("titan-x")
PER_TEST = 6
QUICK = [range(begin, begin + PER_TEST) for begin in range(0, 24, PER_TEST)]
MANY = [range(begin, begin + 25) for begin in range(1000, 1500, 25)]


@pytest.mark.parametrize("seeds", [*QUICK, *larger(*((seeds,) for seeds in MANY))], ids=lambda seeds: str(seeds.start))
def test_a_random_program_stays_within_a_random_budget(seeds: range) -> None:
    found = [f"seed {seed}: {wrong}" for seed in seeds for wrong in _wrong(seed)]
    assert not found, "\n".join(found)


def _wrong(seed: int) -> list[str]:
    torch.manual_seed(seed)
    plain, images = Program(seed), program_images(seed)
    virtual, expected = copy.deepcopy(plain), _two_steps(plain, images)
    try:
        virtual = _within_some_budget(virtual, images, random.Random(seed))
        found = _two_steps(virtual, images)
    except InexactTrace:  # it may refuse; it may not be wrong
        return []
    return [*differences(expected, found), *_over_budget(virtual)]


def _within_some_budget(model: nn.Module, images: Tensor, draw: random.Random) -> Any:
    """Within a share of what keeping everything takes, or the least that can be had; through either front end."""
    sample, share = images.clone().requires_grad_(), f"{draw.randint(40, 100)}%"
    known = {"costs": draw.choices(["roofline", "measured"], [5, 1])[0], "hardware": DEVICE}
    is_captured_as_called = draw.random() < 0.4
    try:
        virtual = virtualize(model, sample, budget=share, **known)
    except Infeasible as reason:
        virtual = virtualize(model, sample, budget=f"{reason.minimum_nbytes}B", **known)
    if is_captured_as_called:
        budget_nbytes = executors(virtual)[0].plan.problem.budget_nbytes
        virtual = virtualize(model, budget=f"{budget_nbytes}B", **known)
    return virtual


def _two_steps(model: nn.Module, images: Tensor) -> dict[str, Any]:
    torch.manual_seed(1)
    left: dict[str, Any] = {}
    for step in range(2):
        model.zero_grad()
        given = images.clone().requires_grad_()
        outputs = model(given)
        sum(_weighted(output) for output in outputs if output.requires_grad).backward()
        left |= {f"output {k} of step {step}": _dense(output) for k, output in enumerate(outputs)}
        left |= {f"gradient of {name} in step {step}": gradient for name, gradient in gradients(model).items()}
        left[f"gradient of the images in step {step}"] = given.grad
    return left


def _dense(output: Tensor) -> Tensor:
    return output.detach().clone(memory_format=torch.contiguous_format)


def _weighted(output: Tensor) -> Tensor:
    return (output * torch.linspace(0.5, 1.5, output.numel()).view(output.shape)).sum()


def _over_budget(virtual: Any) -> list[str]:
    assert executors(virtual), "nothing was captured"
    found = []
    for executor in executors(virtual):
        measured, budget_nbytes = executor.measured.timeline, executor.plan.problem.budget_nbytes
        assert measured is not None, "no step was watched to its end"
        assert budget_nbytes is not None
        if measured.peak_nbytes > budget_nbytes:
            found.append(f"{measured.peak_nbytes} bytes within {budget_nbytes} at {measured.labels[measured.peak_at]}")
    return found
