"""Another plan takes over between two steps: what forward saves may differ, gradients do not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from equivalence import executors
from tiers import DISK
from torch import nn

import vdnn
from vdnn.api import session_of
from vdnn.compile import pipeline
from vdnn.compile.executable import edition_for
from vdnn.compile.traced_step import PlannedStep
from vdnn.errors import LostHandle
from vdnn.plan.strategy_table import solve
from vdnn.runtime.edition import Edition
from vdnn.runtime.executor import Executor
from vdnn.runtime.runtime import shared_runtime
from where import seeded

pytestmark = pytest.mark.any_device

IMAGES = torch.randn(6, 3, 8, 8, generator=seeded(1))


class Net(nn.Module):
    """With running statistics and random numbers: what a step changes and draws."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.drop, self.last = nn.Dropout(0.3), nn.Linear(8 * 64, 4)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        maps = torch.relu(torch.sigmoid(self.norm(self.first(images))) - 0.5)
        return self.last(self.drop(torch.tanh(maps)).flatten(1)).square().sum()


class Captured:
    """A virtualized network, a plain one beside it, and editions of the step under other strategies."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.plain, kept = Net(), list[PlannedStep]()
        with pytest.MonkeyPatch.context() as patch:
            choose = pipeline.choose_form
            patch.setattr(pipeline, "choose_form", lambda *given: kept.append(choose(*given)) or kept[0])
            self.own = Net()
            self.own.load_state_dict(self.plain.state_dict())
            self.virtual = vdnn.virtualize(self.own, sample=(IMAGES,), hardware=DISK)
        self.form = kept[0].form
        (self.executor,) = executors(self.virtual)

    def edition(self, strategy: str) -> Edition:
        return edition_for(self.form, solve(self.form.problem, strategy), session_of(self.virtual))

    def assert_trains_alike(self, seed: int) -> None:
        self.plain.load_state_dict(self.own.state_dict())
        for model, state in ((self.plain, self.plain), (self.virtual, self.own)):
            state.zero_grad()
            torch.manual_seed(seed)
            model(IMAGES).backward()
        self.assert_same()

    def assert_same(self) -> None:
        pairs = zip(self.plain.parameters(), self.own.parameters(), strict=True)
        assert all(torch.equal(one.grad, other.grad) for one, other in pairs)  # type: ignore[arg-type]
        assert all(map(torch.equal, self.plain.buffers(), self.own.buffers()))


@pytest.fixture(scope="module")
def captured() -> Captured:
    return Captured()


STRATEGIES = ("offload", "recompute-memory", "gist", "keep-all", "vdnn-all")


def test_editions_that_save_other_tensors_follow_each_other(captured: Captured) -> None:
    saved = {captured.executor.num_saved}
    for seed, strategy in enumerate(STRATEGIES):
        captured.assert_trains_alike(seed)
        edition = captured.edition(strategy)
        assert captured.executor.replace_edition(edition)
        captured.assert_trains_alike(seed + 100)  # watched, as the first step of every edition is
        timeline: Any = captured.executor.measured.timeline
        assert timeline.peak_nbytes == edition.plan.peak_nbytes
        saved.add(edition.num_saved)
    assert len(saved) > 1, "the plans should save different numbers of tensors"


def test_a_backward_runs_in_the_edition_of_its_forward(captured: Captured) -> None:
    captured.executor.replace_edition(captured.edition("offload"))
    captured.assert_trains_alike(1)
    for model, state in ((captured.plain, captured.plain), (captured.virtual, captured.own)):
        state.zero_grad()
        torch.manual_seed(2)
        first = model(IMAGES)
        if model is captured.virtual:
            captured.executor.replace_edition(captured.edition("recompute-memory"))
        second = model(IMAGES)
        first.backward(retain_graph=True)
        second.backward()
        first.backward()
    captured.assert_same()


def test_an_edition_that_nobody_needs_is_gone(captured: Captured) -> None:
    alive = shared_runtime().handles.num_alive
    loss = captured.virtual(IMAGES)
    captured.executor.replace_edition(captured.edition("keep-all"))
    assert shared_runtime().handles.num_alive == alive + 1
    del loss
    assert shared_runtime().handles.num_alive == alive


def test_a_lost_handle_of_an_earlier_edition_is_an_error(captured: Captured) -> None:
    """What the present edition would read of those tensors is not what they are."""
    captured.executor.replace_edition(captured.edition("keep-all"))
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor.clone(), lambda tensor: tensor):
        loss = captured.virtual(IMAGES)
        captured.executor.replace_edition(captured.edition("recompute-memory"))
        with pytest.raises(LostHandle, match="plan that its forward followed, which is another by now"):
            loss.backward()


def test_a_timed_step_times_every_instruction_once(captured: Captured) -> None:
    executor: Executor = captured.executor
    executor.replace_edition(captured.edition("recompute-memory"))
    captured.assert_trains_alike(5)
    executor.times_next = True
    captured.assert_trains_alike(6)
    (timed,) = executor.measured.timed
    assert sorted(timed) == list(range(len(executor.plan.program)))
    assert all(seconds >= 0 for seconds in timed.values())
    captured.assert_trains_alike(7)
    assert len(executor.measured.timed) == 1, "one was asked for"


def test_between_steps_is_when_no_backward_is_to_come(captured: Captured) -> None:
    called: list[int] = []
    captured.executor.before_step = lambda: called.append(1)
    try:
        loss = captured.virtual(IMAGES)
        captured.virtual(IMAGES)
        assert len(called) == 1
        loss.backward()
        captured.virtual(IMAGES)
        assert len(called) == 2
    finally:
        captured.executor.before_step = None
