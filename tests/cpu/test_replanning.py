"""Plans that get better while a model trains: costs from timed steps, links from copies, editions in between."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from equivalence import executors
from tiers import DISK
from torch import nn

import vdnn
from vdnn.api import session_of
from vdnn.compile.executable import edition_for
from vdnn.compile.judged import JudgedFor
from vdnn.compile.replanning import Replanner
from vdnn.compile.step_times import SEEN, step_times, with_codec_factors, with_factors
from vdnn.cost.cost_cache import CostCache
from vdnn.cost.tried import SCALED
from vdnn.environment import CACHE_DIR
from vdnn.hardware.device import CodecSpeed
from vdnn.hardware.observed_links import ObservedLink
from vdnn.plan.judge.schedule import Kind
from vdnn.plan.model.timeline import COMPUTE
from vdnn.plan.plan import Plan
from vdnn.plan.strategy_table import solve_with_workspaces
from vdnn.runtime.edition import Edition
from where import here, seeded

pytestmark = pytest.mark.any_device

IMAGES = torch.randn(8, 8, 24, 24, generator=seeded(1))


def network() -> nn.Module:
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Sigmoid()) for _ in range(6)]
    return nn.Sequential(*blocks, nn.Flatten(), nn.Linear(8 * 24 * 24, 4))


@pytest.fixture(scope="module")
def plan() -> Plan:
    """With copies, whose drag lengthens what runs beside them."""
    slow = replace(DISK, links=tuple(replace(link, bandwidth_bytes_per_s=2e8, drag=0.3) for link in DISK.links))
    return vdnn.plan(network(), (IMAGES,), budget="60%", strategy="offload", hardware=slow)


def simulated(plan: Plan) -> dict[int, float]:
    lane = plan.timeline.lanes[COMPUTE]
    return {int(k): float(e - b) for k, b, e in zip(lane.instructions, lane.begin_s, lane.end_s, strict=True)}


def keys_of(plan: Plan) -> list[str]:
    return [op.target for op in plan.problem.graph.ops]


def test_a_step_as_it_was_simulated_changes_nothing(plan: Plan) -> None:
    """Copies beside ops lengthen both the simulated and the real instruction: no factor comes of that."""
    assert len({round(s, 9) for s in simulated(plan).values()}) > 1
    seen = step_times(plan, keys_of(plan), [simulated(plan)])
    assert set(seen.factors.values()) == {1.0}
    assert seen.is_off_by == 0


def test_an_op_that_takes_twice_as_long_costs_twice_as_much(plan: Plan) -> None:
    keys = keys_of(plan)
    slow = next(key for key in keys if "convolution_backward" in key)
    times = {
        position: seconds * (2 if plan.program[position].op >= 0 and keys[plan.program[position].op] == slow else 1)
        for position, seconds in simulated(plan).items()
    }
    disturbed = {position: seconds * 3 for position, seconds in times.items()}
    seen = step_times(plan, keys, [disturbed, times])
    assert seen.factors[slow] == pytest.approx(2.0)
    assert {round(f, 6) for key, f in seen.factors.items() if key != slow} == {1.0}
    costs = with_factors(plan.problem.costs, keys, {slow: seen.factors[slow]})
    moment = keys.index(slow)
    assert costs[moment].seconds == pytest.approx(2 * plan.problem.costs[moment].seconds)
    assert costs[moment].source == SEEN


def test_codecs_have_factors_of_their_own() -> None:
    fast = replace(DISK, codecs=(CodecSpeed("relu-mask", 100.0, 50.0, 1.0, 2.0),))
    (slower,) = with_codec_factors(fast, {("relu-mask", Kind.ENCODE): 2.0}).codecs
    assert slower == CodecSpeed("relu-mask", 50.0, 50.0, 2.0, 2.0)


class Training:
    """A network in a budget whose ops were tried, with a replanner that is waited for."""

    def __init__(self, **options: Any) -> None:
        self.plain, self.own = network(), network()
        self.virtual = vdnn.virtualize(self.own, sample=(IMAGES,), costs="tried", hardware=DISK, **options)
        (self.executor,) = executors(self.virtual)

    @property
    def replanner(self) -> Replanner:
        replanner: Any = self.executor.before_step.__self__  # type: ignore[union-attr]
        return replanner

    def step(self) -> None:
        for model, state in ((self.plain, self.plain), (self.virtual, self.own)):
            state.zero_grad()
            model(IMAGES).square().sum().backward()
        pairs = zip(self.plain.parameters(), self.own.parameters(), strict=True)
        assert all(torch.equal(one.grad, other.grad) for one, other in pairs)  # type: ignore[arg-type]
        if self.executor.before_step is not None:
            self.replanner.wait()


def test_costs_of_another_day_are_checked_and_a_better_plan_takes_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what is remembered convolutions are free and everything else takes seconds."""
    monkeypatch.setenv(CACHE_DIR, str(tmp_path))
    keys = Training(budget="60%").replanner._trials.keys
    known = CostCache(where=str(here())).lookup(keys)
    wrong = {key: replace(cost, seconds=1e-7 if "conv" in key else 3.0) for key, cost in known.items()}
    CostCache(where=str(here())).store_all(wrong)
    training = Training(budget="60%")
    executor, believed_s = training.executor, training.executor.plan.step_time_s
    assert believed_s > 10
    for _ in range(6):
        training.step()
    assert executor.plan.step_time_s < believed_s / 10
    assert {cost.source for cost in executor.plan.problem.costs.ops} == {SEEN}
    assert executor.measured.timeline is not None
    assert executor.measured.timeline.peak_nbytes <= (executor.plan.problem.budget_nbytes or 0)


def test_without_replanning_the_first_plan_stays() -> None:
    training = Training(budget="80%", replan=False)
    assert training.executor.before_step is None
    first = training.executor.plan
    for _ in range(4):
        training.step()
    assert training.executor.plan is first


def test_who_follows_a_plan_or_asked_for_measurements_keeps_it() -> None:
    saved = vdnn.plan(network(), (IMAGES,), budget="80%", hardware=DISK)
    for options in ({"plan": saved}, {"costs": "measured", "budget": "80%"}, {"costs": "roofline", "budget": "80%"}):
        virtual = vdnn.virtualize(network(), sample=(IMAGES,), hardware=DISK, **options)  # type: ignore[arg-type]
        (executor,) = executors(virtual)
        assert executor.before_step is None


@pytest.mark.cpu_only("worker threads alone can be slowed down")
def test_a_disk_that_becomes_slow_is_noticed_and_avoided() -> None:
    """From 1 GB/s to 2 MB/s in mid-training, the plan of five steps later is compared with the best for such a disk."""
    training = Training(budget="70%")
    executor = training.executor
    for _ in range(5):
        training.step()
    executor.replace_edition(moving_edition(training))
    training.step()
    transfers: Any = session_of(training.virtual).transfers()
    transfers.throttle["disk"] = 2e6
    for _ in range(5):
        training.step()
    slow = replace(DISK, links=tuple(replace(link, bandwidth_bytes_per_s=2e6) for link in DISK.links))
    problem = replace(executor.plan.problem, hardware=slow)
    best = solve_with_workspaces(problem, "auto")
    assert replace(executor.plan, problem=problem).step_time_s <= 1.3 * best.step_time_s


def test_a_second_shape_has_the_form_of_the_first_and_its_own_bits() -> None:
    plain, own = network(), network()
    virtual = vdnn.virtualize(own, budget="80%", costs="tried", hardware=DISK)
    for images in (IMAGES, IMAGES[:6], IMAGES[:6]):  # a shape is captured when it comes back
        for model, state in ((plain, plain), (virtual, own)):
            state.zero_grad()
            model(images).square().sum().backward()
        pairs = zip(plain.parameters(), own.parameters(), strict=True)
        assert all(torch.equal(one.grad, other.grad) for one, other in pairs)  # type: ignore[arg-type]
    first, second = executors(virtual)
    assert second.plan.problem.form == first.plan.problem.form
    assert SCALED in {cost.source for cost in second.plan.problem.costs.ops}
    assert second.measured.timeline is not None
    assert second.measured.timeline.peak_nbytes <= (second.plan.problem.budget_nbytes or 0)


def test_links_that_scatter_are_not_planned_for_at_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies take one time and twice that in turns, and every step is late."""
    training = Training(budget="70%")
    replanner, executor = training.replanner, training.executor
    for _ in range(4):
        training.step()
    replanner.wait()
    replanner.before_step()
    replanner._expected_s, before = 1.0, replanner.num_planned
    monkeypatch.setattr("vdnn.compile.replanning._last_steps_s", lambda _: [])
    monkeypatch.setattr("vdnn.compile.replanning._is_late", lambda _: True)
    for k in range(40):
        seen = copied(1.0 + k % 2)
        monkeypatch.setattr(replanner, "_links_since", lambda seen=seen: seen)
        monkeypatch.setattr(executor.measured, "timed_steps", [])
        replanner._expected_s = 1.0
        replanner.before_step()
        replanner.wait()
    assert 1 <= replanner.num_planned - before <= 8


def test_steps_are_timed_again_where_their_times_have_not_been() -> None:
    judged = JudgedFor(DISK)
    judged.note_step(1.0)
    scattered = [1.0, 2.2, 0.9, 3.0, 1.1, 2.0] * 50
    num_looks = 0
    for last_s in pairwise(scattered * 2):
        slowest = max(last_s)
        num_looks += judged.has_drifted([slowest])
        if judged.has_drifted([slowest]):
            judged.note_step(slowest)
    assert num_looks == 2
    assert judged.has_drifted([4.5, 4.5])
    assert not judged.has_drifted([4.5, 2.0]), "one step alone may be a moment of others"


def test_links_are_planned_for_where_they_have_not_been() -> None:
    """As slow as once or four times as slow in turns: after one plan each time between the two is known."""
    judged = JudgedFor(DISK)
    slow = [copied(slowdown) for slowdown in (4.0, 1.0, 2.0, 4.0)]
    assert judged.are_far_off(slow[0], 3.0)
    judged.note_links(slow[0])
    assert not any(judged.are_far_off(links, 1.2) for links in slow)
    assert judged.are_far_off(copied(20.0), 3.0)


def copied(slowdown: float) -> tuple[ObservedLink, ...]:
    """Copies to disk that took so many times what the link is believed to take."""
    believed, nbytes = DISK.link("device", "disk"), 1 << 24
    seconds = slowdown * (believed.latency_s + nbytes / believed.bandwidth_bytes_per_s)
    return (ObservedLink("disk", is_back=False, num_copies=1, nbytes=nbytes, busy_s=seconds),)


def moving_edition(training: Training) -> Edition:
    """Nothing but moves: what a plan for a fast disk may do."""
    form, problem = training.replanner._form, training.executor.plan.problem
    plan = solve_with_workspaces(problem, "offload")
    assert any(decision.action.kind == "offload" for decision in plan.decisions)
    return edition_for(form, plan, session_of(training.virtual))
