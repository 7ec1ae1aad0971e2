"""Measured time and workspace, on real ops."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import sleep

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from vdnn.cost import measured
from vdnn.cost import timed_groups as company
from vdnn.cost.cost_cache import CostCache
from vdnn.cost.measured import OpCall, measure
from vdnn.cost.op_memory import highest_over_last, workspace_nbytes
from vdnn.cost.stopwatch import Lap
from vdnn.cost.timed_groups import LONG_OP_S

Run = Callable[[], object]
needs_onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CostCache:
    """Tests run side by side: what others take of the machine is nobody's business here."""
    monkeypatch.setattr(measured, "others_share", lambda: lambda: 0.0)
    return CostCache(tmp_path / "costs.sqlite3", machine="test")


def convolution(layout: torch.memory_format) -> tuple[Run, Run, int]:
    """A 64-channel 3×3 convolution, its backward, and the bytes of its output."""
    images = torch.randn(4, 64, 56, 56).to(memory_format=layout)
    weight = torch.randn(64, 64, 3, 3).to(memory_format=layout)
    grad = torch.randn(4, 64, 56, 56).to(memory_format=layout)
    arguments = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)

    def forward() -> object:
        return torch.ops.aten.convolution(images, weight, None, *arguments)

    def backward() -> object:
        return torch.ops.aten.convolution_backward(grad, images, weight, None, *arguments, [True, True, False])

    return forward, backward, images.nbytes


def matmul(dim: int) -> OpCall:
    def make() -> Run:
        left, right = torch.randn(dim, dim), torch.randn(dim, dim)
        return lambda: left @ right

    return OpCall(f"mm {dim}", make)


def counted(key: str, calls: list[str]) -> OpCall:
    """An op that writes down each time its inputs are made."""

    def make() -> Run:
        calls.append(key)
        tensor = torch.ones(8)
        return lambda: tensor + 1

    return OpCall(key, make)


def test_equal_calls_are_measured_once(cache: CostCache):
    made: list[str] = []
    table = measure([counted("a", made), counted("b", made), counted("a", made)], cache)
    assert made == ["a", "b"]
    assert table[0] == table[2]


def test_what_the_cache_knows_is_not_run(cache: CostCache):
    made: list[str] = []
    first = measure([counted("a", made)], cache)
    assert measure([counted("a", made)], CostCache(cache.path, machine="test")) == first
    assert made == ["a"]


def test_an_op_without_a_call_costs_what_a_view_costs(cache: CostCache):
    view, product = measure([None, matmul(256)], cache).ops
    assert view.workspace_nbytes == 0
    assert 0 < view.seconds < product.seconds


def test_progress_counts_what_had_to_be_measured(cache: CostCache):
    seen: list[tuple[int, int]] = []
    measure([matmul(8), matmul(16), matmul(8)], cache, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 2), (2, 2)]


def test_what_takes_long_says_so_once(
    cache: CostCache, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(measured, "PATIENCE_S", 0.0)
    measure([matmul(8), matmul(16)], cache)
    (told,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert told.startswith("vdnn measures what 2 ops take")


def test_where_progress_is_shown_nothing_is_said(
    cache: CostCache, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(measured, "PATIENCE_S", 0.0)
    measure([matmul(8)], cache, progress=lambda done, total: None)
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


def noted(key: str, runs: list[str], seconds: float = 0.0) -> OpCall:
    """An op that writes down each time it runs, and takes its time."""

    def run() -> None:
        runs.append(key)
        sleep(seconds)

    return OpCall(key, lambda: run)


def test_ops_are_timed_in_company(cache: CostCache):
    runs: list[str] = []
    measure([noted("a", runs), noted("b", runs)], cache, repeats=2)
    assert runs[-4:] == ["a", "b", "a", "b"]


def test_a_long_op_is_timed_alone(cache: CostCache):
    runs: list[str] = []
    measure([noted("a", runs), noted("long", runs, LONG_OP_S), noted("b", runs)], cache, repeats=2)
    assert runs.count("long") == 4
    assert [key for key in runs if key != "long"][-4:] == ["a", "b", "a", "b"]


def test_a_large_product_takes_longer_than_a_small_one(cache: CostCache):
    small, large = measure([matmul(32), matmul(512)], cache).ops
    assert large.seconds > 10 * small.seconds


def test_measuring_leaves_the_random_generator_alone(cache: CostCache):
    def make() -> Run:
        return lambda: torch.ops.aten.native_dropout(torch.ones(64), 0.5, True)

    before = torch.get_rng_state()
    measure([OpCall("dropout", make)], cache)
    assert torch.equal(torch.get_rng_state(), before)


def test_an_op_that_fails_says_which_one_it_was(cache: CostCache):
    def make() -> Run:
        return lambda: torch.ones(2) @ torch.ones(3)

    with pytest.raises(RuntimeError) as caught:
        measure([OpCall("mm of 2 and 3", make)], cache)
    assert "mm of 2 and 3" in "".join(caught.value.__notes__)


def test_the_workspace_is_the_highest_balance_over_the_last():
    assert highest_over_last([10, 5, -5, 20, -20, 1]) == 30 - 11


def test_an_elementwise_op_needs_no_workspace():
    tensor = torch.ones(1 << 16)
    assert workspace_nbytes(lambda: tensor + tensor) == 0


def test_a_temporary_inside_the_op_is_its_workspace():
    tensor = torch.ones(1 << 16)
    assert workspace_nbytes(lambda: torch.neg(tensor + tensor)) == tensor.nbytes


def test_an_in_place_op_needs_no_workspace():
    tensor = torch.ones(1 << 16)
    assert workspace_nbytes(lambda: tensor.add_(tensor)) == 0


@needs_onednn
def test_a_convolution_in_the_default_layout_needs_about_its_output_again():
    forward, _, output_nbytes = convolution(torch.contiguous_format)
    forward()
    assert 0.9 * output_nbytes < workspace_nbytes(forward) < 1.5 * output_nbytes


@needs_onednn
def test_its_backward_needs_about_two_outputs_more():
    _, backward, output_nbytes = convolution(torch.contiguous_format)
    backward()
    assert 1.5 * output_nbytes < workspace_nbytes(backward) < 3 * output_nbytes


@needs_onednn
def test_a_convolution_in_channels_last_needs_nearly_none():
    forward, _, output_nbytes = convolution(torch.channels_last)
    forward()
    assert workspace_nbytes(forward) < 0.2 * output_nbytes


def test_the_public_profiler_sees_the_same_workspace():
    """Note: [What the allocator's events see]"""
    _, backward, _ = convolution(torch.contiguous_format)
    backward()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = backward()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    del result
    public = highest_over_last([event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())])
    assert workspace_nbytes(backward) == public


def test_a_workspace_can_be_measured_while_the_users_profiler_is_on():
    forward, _, _ = convolution(torch.contiguous_format)
    alone = workspace_nbytes(forward)
    with profile(activities=[ProfilerActivity.CPU]):
        assert workspace_nbytes(forward) == alone


def test_where_others_take_the_cores_rounds_go_on(cache: CostCache, monkeypatch: pytest.MonkeyPatch):
    runs: list[str] = []
    monkeypatch.setattr(company, "lap", lambda run: Lap(run() or 1.0, True))
    cost = measure([noted("a", runs)], cache, repeats=2)[0]
    assert len(runs) == 2 + company.MAX_ROUNDS * 2
    assert cost.source == company.DISTURBED


def test_what_was_measured_beside_others_is_measured_again_in_a_quiet_moment(
    cache: CostCache, monkeypatch: pytest.MonkeyPatch
):
    made: list[str] = []
    monkeypatch.setattr(measured, "others_share", lambda: lambda: 0.9)
    monkeypatch.setattr(measured, "share_now", lambda: 0.9)
    for _ in range(2):
        assert measure([counted("a", made)], cache)[0].source == company.DISTURBED
    monkeypatch.setattr(measured, "others_share", lambda: lambda: 0.0)
    monkeypatch.setattr(measured, "share_now", lambda: 0.0)
    for _ in range(2):
        assert measure([counted("a", made)], cache)[0].source == company.MEASURED
    assert made == ["a", "a"]
