"""Depth, in small: the benchmark's deep ResNet with few channels trains exactly and within its share; and the planner
handles the whole depth.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from math import isfinite
from pathlib import Path
from time import process_time
from types import ModuleType

import pytest

from larger import larger
from vdnn.papers import superneurons_networks
from vdnn.papers.superneurons_tables import superneurons_problem
from vdnn.plan import Plan, check, solve

pytestmark = pytest.mark.any_device

RESNET2500 = (6, 32, 788, 6)
PLANNING_S = 20.0  # the most that planning and checking 10^4 layers may take, in seconds of the processor


@pytest.fixture
def depth(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import depth

    return sys.modules[depth.__name__]


def test_a_deep_and_narrow_network_trains_exactly_within_half_its_peak(depth: ModuleType) -> None:
    setting = depth.Setting("resnet-1-1-9-1", 16, 96, 4, "superneurons", "50%", "roofline")
    outcome, plan = depth.train(setting, compare=True)
    assert outcome.num_differing == 0
    assert outcome.measured_nbytes == plan.peak_nbytes <= 0.5 * depth.figures(plan).keep_all_nbytes
    assert all(isfinite(loss) for loss in outcome.losses)


def test_every_part_of_the_way_to_a_step_is_timed(depth: ModuleType) -> None:
    setting = depth.Setting("resnet-1-1-1-1", 2, 64, 4, "superneurons", "90%", "roofline")
    outcome, _ = depth.train(setting)
    assert outcome.seconds.keys() == depth.WORDS.keys()
    assert all(seconds > 0 for seconds in outcome.seconds.values())


@pytest.mark.parametrize(
    ("num_blocks", "num_layers"), [((6, 32, 48, 6), 1000), *larger((RESNET2500, 9000))], ids=["1000", "9000"]
)
@pytest.mark.parametrize("strategy", ["superneurons", "auto"])
def test_many_thousand_layers_are_planned_and_checked_in_seconds(
    strategy: str, num_blocks: tuple[int, ...], num_layers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(superneurons_networks.RESNET_BLOCKS, 2498, num_blocks)
    problem = superneurons_problem(superneurons_networks.resnet(2498, batch=32))
    assert problem.graph.num_forward > num_layers
    bounded = replace(problem, budget_nbytes=Plan(problem, "keep-all").peak_nbytes // 10)
    begin = process_time()
    plan = check(solve(bounded, strategy))
    assert process_time() - begin < PLANNING_S
    assert plan.peak_nbytes <= plan.problem.budget_nbytes  # type: ignore[operator]
