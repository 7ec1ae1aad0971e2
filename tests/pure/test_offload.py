"""offload: as few maps as the budget asks for, away for as short as memory allows, hidden where the link permits."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from larger import larger
from pure import graphs
from pure.golden import UNET
from pure.growth import AT_MOST, TIMES, growth
from pure.test_plan_simulate import long_chain
from vdnn.cost.table import CostTable, OpCost
from vdnn.errors import Infeasible
from vdnn.hardware.device import Tier
from vdnn.ir import Graph, Need
from vdnn.papers.vdnn_networks import alexnet, googlenet, vgg
from vdnn.papers.vdnn_tables import paper_problem
from vdnn.plan import Drop, Offload, Plan, Problem, check, solve
from vdnn.plan.model.bounds import minimum_budget


def chain_problem(budget_nbytes: int | None, bandwidth: float = 1e4) -> Problem:
    """chain(8) of maps of 100 bytes: 1640 bytes when all is kept, copies of 10 ms beside ops of a second."""
    hardware = graphs.machine(bandwidth=bandwidth)
    return graphs.problem(graphs.chain(8), hardware=hardware, budget_nbytes=budget_nbytes)


def names(plan: Plan) -> list[str]:
    return [plan.problem.graph.storages[decision.storage].name for decision in plan.decisions]


def offloads(plan: Plan) -> dict[str, Offload]:
    actions = zip(names(plan), (decision.action for decision in plan.decisions), strict=True)
    return {name: action for name, action in actions if isinstance(action, Offload)}


@pytest.mark.parametrize("budget_nbytes", [None, 1640, 99_999])
def test_what_fits_is_left_alone(budget_nbytes: int | None) -> None:
    assert solve(chain_problem(budget_nbytes), "offload").decisions == ()


def test_one_map_too_many_is_one_map_moved_the_one_used_last() -> None:
    keep_all = Plan(chain_problem(None), "keep-all").peak_nbytes
    assert names(solve(chain_problem(keep_all - 1), "offload")) == ["a1"]


def test_a_map_lingers_until_its_bytes_are_wanted_and_returns_when_they_are_free() -> None:
    """Between its uses a1 could be away at moments 2 to 13; only moment 8 exceeds the budget."""
    keep_all = Plan(chain_problem(None), "keep-all").peak_nbytes
    (action,) = offloads(solve(chain_problem(keep_all - 1), "offload")).values()
    assert (action.leave, action.fetch, action.back) == (7, 9, 14)


def test_copies_that_fit_beside_compute_cost_no_time() -> None:
    plan = check(solve(chain_problem(900), "offload"))
    assert plan.step_time_s == pytest.approx(16.0, rel=1e-3)
    assert plan.peak_nbytes <= 900


def test_a_gap_within_forward_is_used_too() -> None:
    """A skip connection that nobody needs in between leaves while the bottom of the network runs."""
    b = graphs.Builder("skip")
    b.given("x", 10)
    b.op("f0", ["x"], {"skip": 100})
    b.op("f1", ["x"], {"wide": 500})
    b.op("f2", ["wide"], {"low": 10})
    b.op("f3", ["low", "skip"], {"y": 10})
    b.hold("y")
    plan = check(solve(graphs.problem(b.build(), budget_nbytes=530), "offload"))
    assert names(plan) == ["skip"]
    assert offloads(plan)["skip"].back == 3


def test_a_second_gap_in_backward_is_used_where_the_first_is_not_enough() -> None:
    b = graphs.Builder("two backward uses")
    b.given("x", 10)
    b.op("f0", ["x"], {"a": 100})
    b.op("f1", ["a"], {"y": 10})
    b.hold("y")
    b.tangent("g", 10)
    b.op("b0", ["g", "a"], {"g0": 10})
    b.op("b1", ["g0"], {"wide": 500})
    b.op("b2", ["wide"], {"g2": 10})
    b.op("b3", ["g2", "a"], {"g3": 10})
    plan = check(solve(graphs.problem(b.build(), budget_nbytes=550), "offload"))
    assert [(d.action.leave, d.action.back) for d in plan.decisions if isinstance(d.action, Offload)] == [(2, 5)]


def test_what_is_read_for_its_shape_alone_is_dropped_not_copied() -> None:
    b = graphs.Builder("shape")
    b.given("x", 10)
    b.op("f0", ["x"], {"a": 100})
    b.op("f1", ["a"], {"wide": 300})
    b.op("f2", ["wide"], {"y": 300})
    b.hold("y")
    b.tangent("g", 10)
    b.op("b0", ["g", ("a", Need.SHAPE)], {"g0": 10})
    plan = check(solve(graphs.problem(b.build(), budget_nbytes=650), "offload"))
    assert [decision.action for decision in plan.decisions] == [Drop(1)]


def test_a_full_host_sends_the_rest_to_disk_and_the_longest_away_goes_furthest() -> None:
    hardware = graphs.machine(bandwidth=1e4, host_nbytes=200)
    plan = check(solve(replace(chain_problem(900), hardware=hardware), "offload"))
    tiers = {name: action.tier for name, action in offloads(plan).items()}
    assert set(tiers.values()) == {"host", "disk"}
    assert tiers[min(tiers)] == "disk"  # a1: away the longest


def test_infeasible_names_the_smallest_budget_its_op_and_what_fills_it() -> None:
    minimum, moment = minimum_budget(chain_problem(None))
    with pytest.raises(Infeasible) as caught:
        solve(chain_problem(minimum - 1), "offload")
    lines = str(caught.value).splitlines()
    name = chain_problem(None).graph.ops[moment].name
    assert caught.value.minimum_nbytes == minimum
    assert lines[0] == f"no 'offload' plan fits {minimum - 1} B: op {moment} '{name}' needs {minimum} B."
    assert "100 B  a0 (input)" in lines[1]
    assert lines[-1].endswith("or shrink the batch: everything that can be away already is.")


def test_the_smallest_budget_is_met() -> None:
    minimum, _ = minimum_budget(chain_problem(None))
    assert check(solve(chain_problem(minimum), "offload")).peak_nbytes == minimum


def test_reasons_say_how_far_the_next_use_is_and_what_the_copies_take() -> None:
    plan = solve(chain_problem(900), "offload")
    assert plan.decisions[-1].reason == "next use 12.00 s away, copies take 10.00 ms out and 10.00 ms back"


def with_algorithms(budget_nbytes: int) -> Problem:
    asked = chain_problem(budget_nbytes)
    return replace(asked, variants={9: (OpCost(0.5, 400, "fast"), OpCost(1.0, 0, "small"))})


@pytest.mark.parametrize(("budget_nbytes", "source"), [(1000, "fast"), (999, "small")])
def test_an_op_gets_the_fastest_algorithm_that_fits_beside_what_it_needs(budget_nbytes: int, source: str) -> None:
    # Step 9 needs 600 bytes: input and output, a map, two gradient maps, eight weights, two of their gradients.
    plan = check(solve(with_algorithms(budget_nbytes), "offload"))
    assert plan.costs[9].source == source


NETWORKS: dict[str, Graph] = {
    "AlexNet": alexnet(),
    "GoogLeNet": googlenet(),
    "VGG-16": vgg(16, 64),
    "VGG-116": vgg(116, 32),
    "UNet": UNET,
}


def asked(name: str) -> Problem:
    if name == "UNet":
        return graphs.problem(UNET, seconds=0.01, hardware=graphs.machine(bandwidth=1e9))
    return paper_problem(NETWORKS[name])


@pytest.mark.parametrize("name", NETWORKS)
def test_a_larger_budget_is_never_slower(name: str) -> None:
    """Ten budgets from the smallest to keep-all; a tenth of a percent of the step is left to the heuristics."""
    problem = asked(name)
    low, high = minimum_budget(problem)[0], Plan(problem, "keep-all").peak_nbytes
    budgets = [low + (high - low) * k // 9 for k in range(10)]
    times = [check(solve(replace(problem, budget_nbytes=nbytes), "offload")).step_time_s for nbytes in budgets]
    assert all(later <= earlier * 1.001 for earlier, later in pairwise(times)), times


@pytest.mark.parametrize("policy", ["vdnn-conv", "vdnn-all"])
@pytest.mark.parametrize("name", NETWORKS)
def test_at_the_peak_of_a_published_policy_offload_is_no_slower(name: str, policy: str) -> None:
    published = solve(asked(name), policy)
    ours = solve(replace(asked(name), budget_nbytes=published.peak_nbytes), "offload")
    assert ours.step_time_s <= published.step_time_s * 1.001


@pytest.mark.parametrize("share", [0.0, 0.3])
@pytest.mark.parametrize("length", [2_400, *larger(32_000)])
def test_the_work_grows_with_the_ops_not_with_their_square(length: int, share: float) -> None:
    def asked(length: int) -> Problem:
        graph = long_chain(length)
        problem = Problem(graph, CostTable((OpCost(1e-3, 5, "test"),) * len(graph)), graphs.machine(bandwidth=1e6))
        low, high = minimum_budget(problem)[0], Plan(problem, "keep-all").peak_nbytes
        return replace(problem, budget_nbytes=int(low + share * (high - low)))

    small, large = asked(length // TIMES), asked(length)
    assert growth(lambda problem: solve(problem, "offload"), small, large) < AT_MOST
    assert len(solve(large, "offload").decisions) > length / 2


def test_a_bounded_tier_is_named_when_nothing_fits() -> None:
    machine = replace(graphs.machine(), tiers=(Tier("device"), Tier("host", 64), Tier("disk", 64)))
    crowded = replace(graphs.problem(graphs.chain(5)), hardware=machine, budget_nbytes=1)
    with pytest.raises(
        Infeasible,
        match=r"with room for 64 B on host \(by .* host_budget.*\) and 64 B on disk \(by its free space or disk_budget",
    ):
        solve(crowded, "offload")
