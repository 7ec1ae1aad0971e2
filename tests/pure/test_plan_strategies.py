"""Strategies by name, and keep-all, the yardstick."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pure import graphs
from vdnn.errors import Infeasible, InvalidInput
from vdnn.plan import STRATEGIES, Plan, check, solve


def test_an_unknown_strategy_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(InvalidInput, match=r"no strategy 'keepall'.*keep-all"):
        solve(graphs.problem(graphs.chain(3)), "keepall")


def test_keep_all_decides_nothing() -> None:
    plan = check(solve(graphs.problem(graphs.chain(3)), "keep-all"))
    assert (plan.strategy, plan.decisions, plan.peak_nbytes) == ("keep-all", (), 640)


def test_keep_all_accepts_a_budget_of_its_peak() -> None:
    assert solve(graphs.problem(graphs.chain(3), budget_nbytes=640)).peak_nbytes == 640


def too_small() -> Infeasible:
    with pytest.raises(Infeasible) as caught:
        solve(graphs.problem(graphs.chain(3), workspace_nbytes=60, budget_nbytes=500))
    return caught.value


def test_a_budget_that_is_too_small_carries_the_one_that_works() -> None:
    assert too_small().minimum_nbytes == 700


def test_a_budget_that_is_too_small_is_answered_with_op_contents_and_way_out() -> None:
    assert str(too_small()).splitlines() == [
        "no 'keep-all' plan fits 500 B: op 3 'layer3_backward' needs 700 B.",
        "           100 B  a0 (input)",
        "           100 B  a1 (feature map)",
        "           100 B  a2 (feature map)",
        "           100 B  a3 (output)",
        "           100 B  g3 (gradient map)",
        "           100 B  g2 (gradient map)",
        "           100 B  5 smaller ones",
        "Raise budget to at least 700 B (700 bytes), 140% of what was asked (keeping everything takes 700 B),"
        " or choose a strategy that moves feature maps: 'keep-all' moves none.",
    ]


def test_workspace_is_named_when_it_fills_the_peak() -> None:
    with pytest.raises(Infeasible, match=r"900 B  workspace"):
        solve(graphs.problem(graphs.chain(3), workspace_nbytes=900, budget_nbytes=1000))


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_a_strategy_signs_its_plan_with_its_name(name: str) -> None:
    plan: Plan = solve(graphs.problem(graphs.unet(3)), name)
    assert plan.strategy == name


def test_the_planner_does_not_import_torch() -> None:
    script = f"import sys; sys.path[:] = {sys.path!r}; import vdnn.plan; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
