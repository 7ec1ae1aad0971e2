"""The Pareto benchmark's words: who is dominated, how sure that is, and the picture."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def verdict(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import pareto_verdict

    return sys.modules[pareto_verdict.__name__]


@pytest.fixture
def plot(verdict: ModuleType) -> ModuleType:
    import pareto_plot

    return sys.modules[pareto_plot.__name__]


def test_a_peer_with_as_few_bytes_in_as_little_time_dominates(verdict: ModuleType) -> None:
    ours = verdict.Point("auto", "vdnn exact", 100_000, (1.0, 1.0, 1.0))
    assert verdict.dominates(verdict.Point("peer", "inductor", 100_000, (1.0, 1.0, 1.0)), ours)


@pytest.mark.parametrize(("nbytes", "seconds"), [(110_000, 0.5), (50_000, 1.1)], ids=["more-bytes", "more-time"])
def test_a_peer_that_is_worse_in_one_way_does_not_dominate(verdict: ModuleType, nbytes: int, seconds: float) -> None:
    ours = verdict.Point("auto", "vdnn exact", 100_000, (1.0,))
    assert not verdict.dominates(verdict.Point("peer", "inductor", nbytes, (seconds,)), ours)


def test_staging_counts_when_points_are_judged(verdict: ModuleType) -> None:
    ours = verdict.Point("auto", "vdnn exact", 100_000, (1.0,), staging_nbytes=20_000)
    assert verdict.dominates(verdict.Point("peer", "inductor", 110_000, (1.0,)), ours)


def test_the_verdict_names_the_fastest_of_the_peers_that_dominate(verdict: ModuleType) -> None:
    points = [
        verdict.Point("auto", "vdnn exact", 100_000, (1.0, 1.0)),
        verdict.Point("slow peer", "inductor", 50_000, (0.9, 0.9)),
        verdict.Point("fast peer", "inductor", 80_000, (0.5, 0.5)),
    ]
    (line, _) = verdict.verdicts(points, ["vdnn exact"])
    assert "dominated: 1 of 1" in line
    assert "auto by fast peer, 0.800 of the bytes, 0.500 of the time" in line


def test_eager_and_compiled_peers_are_judged_apart(verdict: ModuleType) -> None:
    points = [
        verdict.Point("auto", "vdnn exact", 100_000, (1.0, 1.0)),
        verdict.Point("checkpoint", "checkpoint", 50_000, (1.5, 1.5)),
        verdict.Point("compiled", "inductor", 80_000, (0.5, 0.5)),
    ]
    eager, compiled, _ = verdict.verdicts(points, ["vdnn exact"], ["inductor"])
    assert "beside eager peers: **not dominated**" in eager
    assert "beside compiled ones: **dominated: 1 of 1**" in compiled


def test_within_noise_nobody_is_dominated(verdict: ModuleType) -> None:
    points = [
        verdict.Point("auto", "vdnn exact", 100_000, (1.0, 1.2, 1.0, 1.2, 1.1)),
        verdict.Point("peer", "checkpoint", 100_000, (1.1, 1.0, 1.1, 1.0, 1.1)),
    ]
    assert "**not dominated beyond noise**" in next(verdict.verdicts(points, ["vdnn exact"]))


def test_nobody_below_is_a_point_not_dominated(verdict: ModuleType) -> None:
    points = [
        verdict.Point("auto", "vdnn exact", 100_000, (1.0,)),
        verdict.Point("eager", "eager", 200_000, (0.9,)),
    ]
    assert "**not dominated**" in next(verdict.verdicts(points, ["vdnn exact"]))


def test_who_computes_something_else_is_named_but_does_not_judge(verdict: ModuleType) -> None:
    points = [
        verdict.Point("auto", "vdnn exact", 100_000, (1.0,)),
        verdict.Point("accumulation in 2", "accumulation", 60_000, (0.9,), is_same_step=False),
    ]
    line, beside, _ = verdict.verdicts(points, ["vdnn exact"])
    assert "**not dominated**" in line
    assert "not the same computation: accumulation in 2" in beside


def test_a_difference_that_changes_sign_from_round_to_round_is_noise(verdict: ModuleType) -> None:
    ours = verdict.Point("auto", "vdnn exact", 100_000, (1.0, 1.2, 1.0, 1.2))
    peer = verdict.Point("peer", "inductor", 100_000, (1.1, 1.0, 1.1, 1.0))
    assert "within noise" in verdict.over(ours, peer)


def test_medians_that_the_rounds_contradict_are_noise(verdict: ModuleType) -> None:
    """The peer's median is lower, and it was slower in four rounds of five: its one good round was everybody's."""
    ours = verdict.Point("auto", "vdnn exact", 100_000, (0.61, 0.62, 0.72, 0.46, 0.43))
    peer = verdict.Point("peer", "checkpoint", 60_000, (0.60, 0.69, 0.97, 0.58, 0.55))
    assert verdict.dominates(peer, ours)
    assert "not dominated beyond noise" in verdict.verdict([ours], [peer])


@pytest.mark.parametrize(
    ("nbytes", "seconds", "answer"),
    [
        (100_000, (1.0, 1.0, 1.0), "yes"),
        (100_008, (1.0, 1.0, 1.0), "yes"),
        (110_000, (0.1, 0.1, 0.1), "no: more bytes"),
        (90_000, (1.2, 1.2, 1.2), "no: slower"),
        (90_000, (1.4, 1.01, 0.8), "alike within noise"),
    ],
    ids=["equal", "less-than-a-page-more", "more-bytes", "slower", "noise"],
)
def test_a_peers_bytes_suffice_or_not(
    verdict: ModuleType, nbytes: int, seconds: tuple[float, ...], answer: str
) -> None:
    peer = verdict.Point("peer", "checkpoint", 100_000, (1.0, 1.0, 1.0))
    assert verdict.sufficient(verdict.Point("auto", "vdnn exact", nbytes, seconds), peer) == answer


def test_the_picture_has_a_mark_with_its_name_for_every_point(verdict: ModuleType, plot: ModuleType) -> None:
    points = [
        verdict.Point("eager", "eager", 2**30, (1.0,)),
        verdict.Point("inductor 0.5", "inductor", 2**29, (0.8,)),
        verdict.Point("auto 50 %", "vdnn exact", 2**28, (0.9,)),
    ]
    page = ElementTree.fromstring(plot.picture({"a network": points, "R&D <net>": points}, "a caption"))
    names = [title.text.partition(":")[0] for title in page.iter(f"{SVG}title") if title.text]
    assert names == 2 * ["eager", "inductor 0.5", "auto 50 %"]


def test_less_memory_is_further_left_and_less_time_further_down(verdict: ModuleType, plot: ModuleType) -> None:
    points = [
        verdict.Point("auto 100 %", "vdnn exact", 2**30, (1.0,)),
        verdict.Point("auto 50 %", "vdnn exact", 2**29, (2.0,)),
    ]
    page = ElementTree.fromstring(plot.picture({"a network": points}, "a caption"))
    _, large, small = page.iter(f"{SVG}circle")  # the legend's comes first
    assert float(small.attrib["cx"]) < float(large.attrib["cx"])
    assert float(small.attrib["cy"]) < float(large.attrib["cy"])  # a page counts downwards


@pytest.mark.parametrize(("low", "high"), [(0.31, 0.74), (190.0, 1270.0), (0.9, 1.1)])
def test_labels_of_an_axis_lie_on_it_and_are_few(plot: ModuleType, low: float, high: float) -> None:
    ticks = plot.Scale(low, high, 0.0, 100.0).ticks()
    assert 2 <= len(ticks) <= 6
    assert all(low <= tick <= high for tick in ticks)
