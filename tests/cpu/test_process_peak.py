"""The simulated peak, with measured workspaces, is the peak of the process."""

from __future__ import annotations

import pytest
import torch

import vdnn
from vdnn import models
from vdnn.errors import Unsupported
from vdnn.runtime.process_memory import in_child, peak_of
from vdnn.runtime.step_memory.library import step_library


def arena_over_simulated(model: str, batch: int, image_size: int) -> float:
    """What a model's state and its arena take together, over the plan's peak."""
    torch.manual_seed(0)
    workload = models.load(model, batch, image_size=image_size)
    step = vdnn.virtualize(workload.step, sample=workload.args, costs="measured")
    for _ in range(3):
        step(*workload.args).backward()
        workload.model.zero_grad(set_to_none=True)
    state = (*workload.model.parameters(), *workload.model.buffers(), *workload.args)
    session = vdnn.api.session_of(step)
    counts, (executor,) = session.memory.counts(), session.executors
    assert counts is not None, session.memory.missing
    resident = sum(tensor.untyped_storage().nbytes() for tensor in state)
    return float((resident + counts.arena_nbytes) / executor.plan.peak_nbytes)


def simulated_over_process(model: str, batch: int, image_size: int) -> float:
    torch.manual_seed(0)
    workload = models.load(model, batch, image_size=image_size)
    step = vdnn.virtualize(workload.step, sample=workload.args, costs="measured")
    for _ in range(2):
        step(*workload.args).backward()
        workload.model.zero_grad(set_to_none=True)
    peak = peak_of(lambda: step(*workload.args).backward())
    state = (*workload.model.parameters(), *workload.model.buffers(), *workload.args)
    (executor,) = vdnn.api.session_of(step).executors
    resident = sum(tensor.untyped_storage().nbytes() for tensor in state)
    return float(executor.plan.peak_nbytes / (resident + peak.delta_nbytes))


@pytest.mark.slow
@pytest.mark.parametrize(("model", "batch", "image_size"), [("resnet50", 8, 128), ("vgg16", 4, 128)])
def test_the_simulated_peak_is_within_two_percent_of_the_process(
    model: str, batch: int, image_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With malloc's memory, which comes and goes within the step: an arena stays."""
    monkeypatch.setenv("VDNN_STEP_MEMORY", "0")
    try:
        ratio = in_child(simulated_over_process, model, batch, image_size)
    except Unsupported as reason:
        pytest.skip(str(reason))
    assert ratio == pytest.approx(1.0, abs=0.02)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "batch", "image_size"), [("resnet50", 8, 128), ("vgg16", 4, 128)])
def test_the_arena_is_within_three_percent_of_the_simulated_peak(model: str, batch: int, image_size: int) -> None:
    if step_library().functions is None:
        pytest.skip(step_library().missing)
    assert in_child(arena_over_simulated, model, batch, image_size) <= 1.03
