"""Watched steps: bytes by role at every step of a real training step, as a timeline of the simulator's own type."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from equivalence import assert_measured_as_simulated, executors, tensor_nbytes, virtualize
from nets import EITHER_FRONT_END, ConvNet, backward, images, options
from torch import nn

from vdnn.api import session_of
from vdnn.plan.model.timeline import COMPUTE, ROLES, Timeline
from vdnn.runtime.executor import Executor

pytestmark = pytest.mark.any_device


def trained(num_steps: int = 1) -> Executor:
    virtual, batch = virtualize(ConvNet()), images()
    for _ in range(num_steps):
        output = virtual(batch)
        output.sum().backward()
    (executor,) = executors(virtual)
    return executor


def measured(executor: Executor) -> Timeline:
    timeline = executor.measured.timeline
    assert timeline is not None
    return timeline


def test_the_first_step_is_watched_and_later_ones_are_timed() -> None:
    executor = trained(num_steps=3)
    assert measured(executor).source == "measured"
    assert (executor.measured.num_forward, executor.measured.num_backward) == (3, 3)
    assert (len(executor.measured.forward_s), len(executor.measured.backward_s)) == (2, 2)


def test_measured_and_simulated_agree_role_by_role() -> None:
    executor = trained()
    simulated = executor.plan.timeline
    for row, role in enumerate(ROLES):
        found, expected = measured(executor).nbytes["device"][row], simulated.nbytes[simulated.device][row]
        assert np.array_equal(found, expected), role


def test_steps_run_one_after_the_other() -> None:
    lane = measured(trained()).lanes[COMPUTE]
    assert (lane.begin_s <= lane.end_s).all()
    assert (lane.end_s[:-1] <= lane.begin_s[1:]).all()


def test_a_forward_without_backward_is_no_measurement() -> None:
    virtual = virtualize(ConvNet())
    virtual(images())
    (executor,) = executors(virtual)
    assert executor.measured.timeline is None


def test_after_a_dropped_forward_the_next_step_is_watched() -> None:
    virtual, batch = virtualize(ConvNet()), images()
    virtual(batch)
    output = virtual(batch)
    output.sum().backward()
    assert_measured_as_simulated(virtual)


@EITHER_FRONT_END
def test_another_step_can_be_watched(front_end: str) -> None:
    batch = images()
    virtual = virtualize(ConvNet(), **options(front_end, batch))
    backward(virtual, batch)
    session_of(virtual).watch_next()
    output = virtual(batch)
    output.sum().backward()
    assert_measured_as_simulated(virtual)
    assert output.shape == (4, 4)


def test_an_output_that_the_caller_drops_is_seen_to_be_gone() -> None:
    """What is counted is what is there: here the caller lets go of an output that a plan has to assume is held."""
    virtual, batch = virtualize(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))), torch.ones(3, 4)
    virtual(batch).sum().backward()
    (executor,) = executors(virtual)
    surplus = tensor_nbytes(measured(executor)) - tensor_nbytes(executor.plan.timeline)
    assert surplus.min() == -3 * 4 * 4
    assert surplus.max() == 0


def test_watching_changes_no_result() -> None:
    plain = ConvNet()
    virtual, batch = virtualize(plain), images()
    results = []
    for _ in range(2):  # the first is watched, the second is not
        torch.manual_seed(0)
        virtual.load_state_dict({name: torch.ones_like(tensor) for name, tensor in virtual.state_dict().items()})
        virtual.zero_grad()
        output = virtual(batch)
        output.sum().backward()
        results.append([output.detach(), *(p.grad for p in virtual.parameters())])
    assert all(map(torch.equal, *results))
