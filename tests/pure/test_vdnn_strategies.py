"""vDNN as published: who leaves, when they return, which algorithm wins. Section numbers are the paper's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pure import graphs
from vdnn.cost.table import OpCost
from vdnn.errors import Infeasible
from vdnn.hardware.device import Hardware, Tier
from vdnn.ir import Graph, Need
from vdnn.known_ops.known_op import LayerKind
from vdnn.papers.layer_network import LayerNetwork
from vdnn.plan import Drop, Offload, Plan, Problem, check, solve
from vdnn.plan.model.layers import Layer
from vdnn.plan.strategies.vdnn_policy import find_prefetch_layer

CONV, POOL, OTHER = LayerKind.CONV, LayerKind.POOL, LayerKind.OTHER


def small_vgg() -> Graph:
    """conv1 conv2 pool1 conv3 conv4 pool2 fc; every map is 16 KiB times its channels."""
    net = LayerNetwork("small vgg", 16)
    x = net.images(1, 16, 16)
    x = net.convolution("conv2", net.convolution("conv1", x, 4, 3, padding=1), 4, 3, padding=1)
    x = net.convolution("conv3", net.pooling("pool1", x, 2, 2), 8, 3, padding=1)
    x = net.pooling("pool2", net.convolution("conv4", x, 8, 3, padding=1), 2, 2)
    net.softmax("softmax", net.linear("fc", x, 10, relu=False))
    return net.graph()


def problem(graph: Graph, **options: object) -> Problem:
    return graphs.problem(graph, seconds=1e-3, hardware=graphs.machine(bandwidth=1e9), **options)  # type: ignore[arg-type]


def actions(plan: Plan) -> dict[str, Offload]:
    found = {plan.problem.graph.storages[d.storage].name: d.action for d in check(plan).decisions}
    assert all(isinstance(action, Offload) for action in found.values())
    return found  # type: ignore[return-value]


def moment(graph: Graph, name: str) -> int:
    return next(t for t, op in enumerate(graph.ops) if op.name == name)


def test_vdnn_all_offloads_the_x_of_every_convolution_and_pooling_but_the_last() -> None:
    # X of conv1, conv2, pool1, conv3, conv4; pool2 is the last layer of feature extraction: its X (conv4) stays.
    assert set(actions(solve(problem(small_vgg()), "vdnn-all"))) == {"images", "conv1", "conv2", "pool1", "conv3"}


def test_vdnn_conv_offloads_the_x_of_convolutions_only() -> None:
    assert set(actions(solve(problem(small_vgg()), "vdnn-conv"))) == {"images", "conv1", "pool1", "conv3"}


def test_a_map_leaves_at_the_end_of_the_layer_that_takes_it() -> None:
    graph = small_vgg()
    leaves = {name: action.leave for name, action in actions(solve(problem(graph), "vdnn-all")).items()}
    takers = {"images": "conv1", "conv1": "conv2", "conv2": "pool1", "pool1": "conv3", "conv3": "conv4"}
    assert leaves == {name: moment(graph, taker) for name, taker in takers.items()}


def test_each_backward_prefetches_for_the_layer_before_it() -> None:
    """conv4's X during pool2, pool1's X during conv3: one prefetch per layer, never past a convolution (3.3)."""
    graph = small_vgg()
    fetches = {name: action.fetch for name, action in actions(solve(problem(graph), "vdnn-all")).items()}
    during = {"conv3": "softmax", "pool1": "conv4", "conv2": "conv3", "conv1": "pool1", "images": "conv2"}
    assert fetches == {name: moment(graph, f"{layer}_backward") for name, layer in during.items()}


def test_the_end_of_a_layer_waits_for_its_prefetch() -> None:
    graph = small_vgg()
    action = actions(solve(problem(graph), "vdnn-all"))["conv1"]
    assert action.back == moment(graph, "conv2.relu_backward") == action.fetch + 1


def chain_of(*kinds: LayerKind) -> list[Layer]:
    return [Layer(kind, moment, None, moment) for moment, kind in enumerate(kinds)]


def prefetched_by(kinds: list[LayerKind], offloaded: set[int], prefetched: set[int], current: int) -> int | None:
    network = chain_of(*kinds)
    stops = [k for k, kind in enumerate(kinds) if kind is CONV or k in offloaded]
    return find_prefetch_layer(network, stops, offloaded, prefetched, current)


def test_the_window_reaches_over_other_layers_to_the_nearest_convolution() -> None:
    assert prefetched_by([CONV, OTHER, OTHER, OTHER], {0}, set(), 3) == 0


def test_the_window_ends_at_the_nearest_convolution_even_if_that_has_nothing_to_fetch() -> None:
    assert prefetched_by([CONV, CONV, OTHER], {0}, set(), 2) is None
    assert prefetched_by([CONV, CONV, OTHER], {0, 1}, {1}, 2) is None


def test_a_pooling_that_was_prefetched_does_not_end_the_window() -> None:
    assert prefetched_by([CONV, POOL, POOL, OTHER], {0, 1, 2}, {2}, 3) == 1


def test_the_first_layer_has_nothing_before_it() -> None:
    assert prefetched_by([CONV], {0}, set(), 0) is None


def conv_with(b: graphs.Builder, name: str, x: str, made: str) -> None:
    b.op(name, [x], {made: 100}, target="aten.convolution.default", module=name)


def back_through(b: graphs.Builder, name: str, reads: list[str | tuple[str, Need]], made: str) -> None:
    b.op(f"{name}_backward", reads, {made: 100}, target="aten.convolution_backward.default", module=name)


def test_a_map_with_two_takers_leaves_after_the_last_one() -> None:
    """Refcnt: s feeds left and right, and right is issued last."""
    b = graphs.Builder("two takers")
    b.given("x", 100)
    conv_with(b, "stem", "x", "s")
    conv_with(b, "left", "s", "l")
    conv_with(b, "right", "s", "r")
    conv_with(b, "last", "r", "y")
    b.tangent("gy", 100)
    back_through(b, "last", ["gy", "r"], "gr")
    back_through(b, "right", ["gr", "s"], "gs")
    back_through(b, "left", ["gs", "s", "l"], "gt")
    graph = b.build()
    (action,) = [a for name, a in actions(solve(problem(graph), "vdnn-conv")).items() if name == "s"]
    assert (action.leave, action.fetch, action.back) == (2, 4, 5)


def test_a_map_that_no_window_reached_is_fetched_where_it_is_used() -> None:
    """Two convolutions read one op's gradient: the first backward op has no layer before it to prefetch in."""
    b = graphs.Builder("on demand")
    b.given("x", 100)
    conv_with(b, "one", "x", "a")
    conv_with(b, "two", "a", "b")
    conv_with(b, "three", "b", "c")
    b.tangent("gc", 100)
    back_through(b, "two", ["gc", "a"], "ga")
    graph = b.build()
    assert actions(solve(problem(graph), "vdnn-conv"))["a"] == Offload("host", 1, 3, 3)


def test_a_map_of_which_backward_reads_the_shape_is_released_without_a_copy() -> None:
    b = graphs.Builder("shape")
    b.given("x", 100)
    conv_with(b, "one", "x", "a")
    conv_with(b, "two", "a", "b")
    conv_with(b, "three", "b", "c")
    b.tangent("gc", 100)
    back_through(b, "two", ["gc", ("a", Need.SHAPE)], "ga")
    (decision,) = check(solve(problem(b.build()), "vdnn-conv")).decisions
    assert decision.action == Drop(1)


def test_the_nearest_tier_with_room_takes_the_copy() -> None:
    graph = small_vgg()
    host_nbytes = graph.storages[next(k for k, s in enumerate(graph.storages) if s.name == "conv1")].nbytes
    machine = graphs.machine(bandwidth=1e9, host_nbytes=host_nbytes)
    plan = check(solve(replace(problem(graph), hardware=machine), "vdnn-all"))
    assert {d.action.tier for d in plan.decisions if isinstance(d.action, Offload)} == {"host", "disk"}


def test_without_a_slower_tier_nothing_leaves() -> None:
    lonely = Hardware("only a device", 1.0, 1.0, (Tier(graphs.DEVICE),))
    assert solve(replace(problem(small_vgg()), hardware=lonely), "vdnn-all").decisions == ()


def with_algorithms(graph: Graph) -> Problem:
    """The later convolutions: fast with a MiB of workspace, slower with half of it, slowest with none."""
    plain = problem(graph)
    offered = (OpCost(1e-3, 1 << 20, "fast"), OpCost(2e-3, 1 << 19, "middle"), OpCost(4e-3, 0, "small"))
    convolutions = [
        t for t, op in enumerate(graph.ops) if "convolution" in op.target and op.module in ("conv3", "conv4")
    ]
    return replace(plain, variants=dict.fromkeys(convolutions, offered))


@pytest.mark.parametrize(("strategy", "source"), [("vdnn-all(m)", "small"), ("vdnn-all(p)", "fast")])
def test_m_takes_the_least_workspace_and_p_the_fastest(strategy: str, source: str) -> None:
    plan = solve(with_algorithms(small_vgg()), strategy)
    assert {plan.costs[moment].source for moment in plan.problem.variants} == {source}


@pytest.mark.parametrize("policy", ["vdnn-all", "vdnn-conv"])
def test_the_plain_name_is_p(policy: str) -> None:
    asked = with_algorithms(small_vgg())
    plain, fast = solve(asked, policy), solve(asked, f"{policy}(p)")
    assert (plain.decisions, plain.variants) == (fast.decisions, fast.variants)


def peak(strategy: str) -> int:
    return solve(with_algorithms(small_vgg()), strategy).peak_nbytes


def dyn(budget_nbytes: int | None) -> Plan:
    return check(solve(replace(with_algorithms(small_vgg()), budget_nbytes=budget_nbytes), "vdnn-dyn"))


def test_dyn_keeps_everything_when_everything_fits() -> None:
    plan = dyn(None)
    assert (plan.decisions, plan.note) == ((), "vdnn-dyn pass 2: nothing offloaded, fastest algorithms")


def test_dyn_prefers_offloading_for_convolutions_only() -> None:
    assert dyn(peak("vdnn-conv(p)")).note == "vdnn-dyn pass 3: vdnn-conv, fastest algorithms"


def test_dyn_offloads_all_before_it_gives_up_fast_algorithms() -> None:
    assert peak("vdnn-all(p)") < peak("vdnn-conv(p)")
    assert dyn(peak("vdnn-all(p)")).note == "vdnn-dyn pass 4: vdnn-all, fastest algorithms"


def test_dyn_downgrades_only_the_convolutions_that_overflow() -> None:
    plan = dyn(peak("vdnn-all(p)") - 1)
    sources = {plan.costs[moment].source for moment in plan.problem.variants}
    assert plan.note.startswith("vdnn-dyn pass 5: vdnn-conv, algorithms downgraded")
    assert {"fast", "middle"} <= sources


def test_dyn_meets_the_smallest_budget_of_the_feasibility_pass() -> None:
    plan = dyn(peak("vdnn-all(m)"))
    assert plan.note.startswith("vdnn-dyn pass 5")
    assert plan.peak_nbytes <= peak("vdnn-all(m)")


def test_dyn_writes_the_pass_into_every_reason() -> None:
    plan = dyn(peak("vdnn-conv(p)"))
    assert plan.decisions
    assert all(d.reason.startswith("pass 3: vdnn-conv") for d in plan.decisions)


def test_dyn_declines_below_vdnn_all_with_the_least_workspace() -> None:
    with pytest.raises(Infeasible, match="no 'vdnn-dyn' plan fits") as caught:
        dyn(peak("vdnn-all(m)") - 1)
    assert caught.value.minimum_nbytes == peak("vdnn-all(m)")


def test_a_static_policy_that_does_not_fit_names_the_way_out() -> None:
    asked = replace(with_algorithms(small_vgg()), budget_nbytes=peak("vdnn-all(p)") - 1)
    with pytest.raises(Infeasible, match=r"less workspace by 'vdnn-all\(m\)'"):
        solve(asked, "vdnn-all(p)")


def test_a_network_without_convolutions_is_left_alone() -> None:
    assert solve(problem(graphs.chain(5)), "vdnn-all").decisions == ()
