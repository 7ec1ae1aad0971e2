"""gist: the first form that applies and is shorter, for every map that forward leaves for backward."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pure import graphs
from pure.graphs import ABOVE_ZERO, INSIDE_SIX, POOL
from pure.random_plans import training_steps
from random_examples import examples
from vdnn.errors import Infeasible, InvalidInput
from vdnn.ir import Graph, Need, Role
from vdnn.plan import Action, Drop, Encode, Problem, check, simulate, solve, violations
from vdnn.plan.judge.walk import walk
from vdnn.plan.model.timeline import ROW_OF_ROLE

RELU, CONV, NOISE = "aten.relu.default", "aten.convolution.default", "aten.bernoulli_.default"
GIST = ("gist", "gist-fp16", "gist-fp10", "gist-fp8")
COUNT = 4096


def network(*readers: tuple[Any, ...], maker: str = CONV, nbytes: int = 4 * COUNT, **options: Any) -> Graph:
    """A map `a` that the next op reads, and each of the backward `readers` takes something of."""
    b = graphs.Builder("network")
    b.given("x", nbytes)
    b.op("make", ["x"], {"a": nbytes}, target=maker, **options)
    b.op("use", ["a"], {"y": 64}, roles={"y": Role.OUTPUT})
    b.hold("y")
    gradient = b.tangent("g", 64)
    for number, reader in enumerate(readers):
        gradient = b.op(f"b{number}", [gradient, ("a", *reader)], {f"g{number}": 64})
    return b.build()


def decided(graph: Graph, strategy: str = "gist", **allowed: Any) -> Action | None:
    """What the strategy does with `a`; None: it stays."""
    plan = solve(graphs.problem(graph, **allowed), strategy)
    chosen = [d.action for d in plan.decisions if graph.storages[d.storage].name == "a"]
    assert len(chosen) <= 1
    return chosen[0] if chosen else None


def codec(graph: Graph, strategy: str = "gist", **allowed: Any) -> tuple[str, int, bool]:
    """The codec that `a` is encoded with, its bytes, and whether it is read as it is."""
    action = decided(graph, strategy, **allowed)
    assert isinstance(action, Encode)
    return action.codec, action.nbytes, action.direct


def test_what_only_a_shape_is_read_of_is_dropped() -> None:
    assert decided(network((Need.SHAPE,))) == Drop(1)


@pytest.mark.parametrize("is_direct", [True, False])
def test_codecs_that_take_room_have_it_in_the_plan_where_they_work(is_direct: bool) -> None:
    asked = graphs.problem(network((Need.SIGN, ABOVE_ZERO, is_direct)), codecs_take_room=True)
    plan = check(solve(asked, "gist"))
    rooms = plan.timeline.nbytes[plan.timeline.device][ROW_OF_ROLE[Role.WORKSPACE]]
    working = [label.split()[0] for label, nbytes in zip(plan.timeline.labels, rooms, strict=True) if nbytes]
    assert working == (["encode", "b0"] if is_direct else ["encode", "decode"])
    assert simulate(plan).peak_nbytes == walk(plan).peak_nbytes


def test_a_sign_takes_one_bit_per_element_and_is_read_as_it_is() -> None:
    assert codec(network((Need.SIGN, ABOVE_ZERO, True))) == ("sign-mask", COUNT // 8, True)


def test_a_yes_or_no_takes_one_bit_per_element() -> None:
    assert codec(network((Need.BOOL, INSIDE_SIX, True))) == ("bool-mask", COUNT // 8, True)


def test_a_reader_without_a_form_for_bits_has_them_decoded() -> None:
    assert codec(network((Need.SIGN, ABOVE_ZERO, False))) == ("sign-mask", COUNT // 8, False)


def test_a_place_in_a_window_takes_half_a_byte() -> None:
    index = network((Need.WINDOW_INDEX, POOL, True), nbytes=8 * COUNT, dtypes={"a": "int64"})
    assert codec(index) == ("window-index", COUNT // 2, True)


def test_a_place_in_a_large_window_takes_a_byte() -> None:
    large = (1, 5, 5, *POOL[3:])
    index = network((Need.WINDOW_INDEX, large, True), nbytes=8 * COUNT, dtypes={"a": "int64"})
    assert codec(index) == ("window-index", COUNT, True)


def test_a_place_in_a_window_of_more_than_256_places_stays() -> None:
    huge = (1, 17, 17, *POOL[3:])
    assert decided(network((Need.WINDOW_INDEX, huge, True), nbytes=8 * COUNT, dtypes={"a": "int64"})) is None


def test_a_storage_of_two_numbers_takes_one_bit_per_element_whatever_is_read_of_it() -> None:
    noise = network((Need.ALL, (), True), (Need.ALL,), maker=NOISE, alphabets={"a": (0.0, 2.0)})
    assert codec(noise) == ("bool-mask", COUNT // 8, False)


def test_a_storage_of_booleans_takes_one_bit_per_element() -> None:
    mask = network((Need.ALL,), dtypes={"a": "bool"}, alphabets={"a": (0.0, 1.0)})
    assert codec(mask) == ("bool-mask", 4 * COUNT // 8, False)


def test_many_zeros_are_left_out_by_a_bit_mask() -> None:
    mask, starts, values = COUNT // 8, 16, 4 * 2663
    assert codec(network((Need.ALL,), maker=RELU)) == ("sparse", mask + starts + values + 4, False)


def test_few_values_are_kept_as_published() -> None:
    name, nbytes, _ = codec(network((Need.ALL,), maker=RELU), density=0.05)
    assert (name, nbytes) == ("csr", 4 * (COUNT // 256 + 1) + 4 + 208 + 824)


def test_a_map_without_zeros_stays_when_every_bit_counts() -> None:
    assert decided(network((Need.ALL,))) is None


@pytest.mark.parametrize(("format", "nbytes"), [("fp16", 8192), ("fp10", 5464), ("fp8", 4096)])
def test_a_map_without_zeros_is_rounded_when_that_is_allowed(format: str, nbytes: int) -> None:
    assert codec(network((Need.ALL,)), f"gist-{format}") == (format, nbytes, False)


def test_zeros_and_rounding_go_together() -> None:
    name, nbytes, _ = codec(network((Need.ALL,), maker=RELU), "gist-fp8")
    assert name == "sparse-fp8"
    assert nbytes < COUNT


def test_where_few_zeros_are_planned_for_rounding_alone_is_shorter() -> None:
    assert codec(network((Need.ALL,), maker=RELU), "gist-fp8", density=1.0)[0] == "fp8"


def test_bits_are_shorter_than_any_rounding() -> None:
    assert codec(network((Need.SIGN, ABOVE_ZERO, True)), "gist-fp8")[0] == "sign-mask"


def test_a_statistic_beside_a_map_is_not_rounded() -> None:
    b = graphs.Builder("norm")
    b.given("x", 4)
    b.op("norm", ["x"], {"map": 4096, "a": 64})
    b.op("use", ["map"], {"y": 4})
    b.hold("y")
    b.tangent("g", 4)
    b.op("b", ["g", "map", "a"], {"gx": 4})
    plan = solve(graphs.problem(b.build()), "gist-fp16")
    assert [plan.problem.graph.storages[d.storage].name for d in plan.decisions] == ["map"]


def test_an_encoding_that_is_not_shorter_is_not_written() -> None:
    assert decided(network((Need.ALL,), maker=RELU, nbytes=32)) is None


@pytest.mark.parametrize("dtype", ["complex64", "int16"])
def test_what_no_codec_knows_stays(dtype: str) -> None:
    assert decided(network((Need.ALL,), maker=RELU, dtypes={"a": dtype})) is None


def test_a_half_precision_map_with_zeros_is_kept_by_its_own_bytes() -> None:
    assert codec(network((Need.ALL,), maker=RELU, dtypes={"a": "bfloat16"}))[0] == "sparse"


def test_rounding_is_for_float32() -> None:
    assert decided(network((Need.ALL,), dtypes={"a": "float64"}), "gist-fp16") is None


def test_an_encoding_is_written_after_the_last_forward_use_and_read_before_the_first_backward_use() -> None:
    action = decided(network((Need.SHAPE,), (Need.SIGN, ABOVE_ZERO, False)))
    assert isinstance(action, Encode)
    assert (action.leave, action.back) == (1, 3)


def test_reading_an_encoding_as_it_is_takes_no_time_to_decode() -> None:
    direct, decoded = (decided(network((Need.SIGN, ABOVE_ZERO, form))) for form in (True, False))
    assert isinstance(direct, Encode)
    assert isinstance(decoded, Encode)
    assert (direct.decode_s, decoded.decode_s) == (0.0, decoded.encode_s)


def test_encoding_takes_the_time_of_its_traffic() -> None:
    """The testbench moves a byte of memory in a second: the map is read, an eighth of its elements' bytes written."""
    action = decided(network((Need.SIGN, ABOVE_ZERO, True)))
    assert isinstance(action, Encode)
    assert action.encode_s == 4 * COUNT + COUNT // 8


def test_lossy_in_the_problem_is_lossy_in_the_name() -> None:
    problem = graphs.problem(network((Need.ALL,)), lossy="fp10")
    assert solve(problem, "gist").strategy == "gist-fp10"


def test_a_format_in_the_name_and_another_in_the_problem_contradict() -> None:
    problem = graphs.problem(network((Need.ALL,)), lossy="fp8")
    with pytest.raises(InvalidInput, match="'gist-fp16' rounds to fp16, but lossy='fp8' was given: say one"):
        solve(problem, "gist-fp16")


@pytest.mark.parametrize("density", [0.0, -0.1, 1.01])
def test_a_density_is_a_share(density: float) -> None:
    with pytest.raises(ValueError, match="a density lies above 0 and not above 1"):
        graphs.problem(network((Need.ALL,)), density=density)


def test_a_lossy_format_has_to_exist() -> None:
    with pytest.raises(ValueError, match="lossy is one of fp16, bf16, fp10, fp8 or None, not 'fp3'"):
        graphs.problem(network((Need.ALL,)), lossy="fp3")


def test_a_budget_that_no_encoding_meets_is_answered_with_the_one_that_works() -> None:
    problem = graphs.problem(graphs.layered(), budget_nbytes=1000)
    with pytest.raises(Infeasible, match=r"allow rounding with lossy='fp16'") as caught:
        solve(problem, "gist")
    assert violations(solve(replace(problem, budget_nbytes=caught.value.minimum_nbytes), "gist")) == []


def test_shorter_formats_peak_lower_between_forward_and_backward() -> None:
    def stashed_nbytes(strategy: str) -> int:
        plan = solve(graphs.problem(graphs.layered()), strategy)
        at = max(position for position, moment in enumerate(plan.timeline.moments) if moment == 10)
        return int(plan.timeline.total()[at])

    sizes = [stashed_nbytes(strategy) for strategy in ("keep-all", *GIST)]
    assert sizes == sorted(set(sizes), reverse=True)


@st.composite
def networks(draw: st.DrawFn) -> Problem:
    """Random steps with maps of some KiB, made by ops that leave zeros and ops that do not."""
    graph = draw(training_steps())
    ops = tuple(replace(op, target=draw(st.sampled_from([RELU, CONV]))) for op in graph.ops)
    storages = tuple(replace(storage, nbytes=256 * storage.nbytes) for storage in graph.storages)
    density = draw(st.sampled_from([0.05, 0.65, 1.0]))
    return graphs.problem(replace(graph, ops=ops, storages=storages), density=density)


@pytest.mark.parametrize("strategy", GIST)
@given(problem=networks())
@examples(40)
def test_a_gist_plan_holds_and_is_never_longer_than_its_maps(strategy: str, problem: Problem) -> None:
    plan = solve(problem, strategy)
    assert violations(plan) == []
    for decision in plan.decisions:
        if isinstance(decision.action, Encode):
            assert decision.action.nbytes < problem.graph.storages[decision.storage].nbytes
