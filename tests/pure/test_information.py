"""What backward really needs of what forward left, found by asking every reader."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pure import graphs
from pure.graphs import ABOVE_ZERO, INSIDE_SIX, POOL
from vdnn.ir import Information, Need, Role, Trait
from vdnn.plan.model.stashes import STATISTIC_RATIO, Stash, stashes

SIGN, INSIDE = Information(Need.SIGN, ABOVE_ZERO), Information(Need.BOOL, INSIDE_SIX)
WINDOW = Information(Need.WINDOW_INDEX, POOL)
NOTHING, SHAPE, ALL = Information(), Information(Need.SHAPE), Information(Need.ALL)
KINDS = st.sampled_from([NOTHING, SHAPE, SIGN, Information(Need.SIGN, INSIDE_SIX), INSIDE, WINDOW, ALL])


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        (SIGN, SIGN, SIGN),
        (SIGN, INSIDE, ALL),
        (SIGN, Information(Need.SIGN, INSIDE_SIX), ALL),
        (INSIDE, WINDOW, ALL),
        (SIGN, SHAPE, SIGN),
        (NOTHING, WINDOW, WINDOW),
        (SIGN, ALL, ALL),
        (NOTHING, SHAPE, SHAPE),
        (NOTHING, NOTHING, NOTHING),
    ],
)
def test_two_needs_join_to_what_covers_both(one: Information, other: Information, both: Information) -> None:
    assert (one.joined(other), other.joined(one)) == (both, both)


@given(a=KINDS, b=KINDS, c=KINDS)
def test_the_order_in_which_needs_are_joined_does_not_matter(a: Information, b: Information, c: Information) -> None:
    assert a.joined(b).joined(c) == a.joined(b.joined(c))


@pytest.mark.parametrize("partial", [SIGN, INSIDE, WINDOW])
def test_a_question_about_elements_is_a_partial_need(partial: Information) -> None:
    assert partial.is_partial


@pytest.mark.parametrize("whole", [NOTHING, SHAPE, ALL])
def test_nothing_a_shape_and_all_values_are_no_partial_needs(whole: Information) -> None:
    assert not whole.is_partial


def stash(*readers: tuple[Any, ...], maker: str = "aten.relu.default", **options: Any) -> Stash:
    """The stash of `a`: `maker` makes it, the next op reads it, each backward reader takes something of it."""
    b = graphs.Builder("stash")
    b.given("x", 400)
    b.op("make", ["x"], {"a": 400}, target=maker, **options)
    b.op("use", ["a"], {"y": 400}, roles={"y": Role.OUTPUT})
    b.hold("y")
    gradient = b.tangent("g", 400)
    for number, reader in enumerate(readers):
        gradient = b.op(f"b{number}", [gradient, ("a", *reader)], {f"g{number}": 400})
    graph = b.build()
    (found,) = (s for s in stashes(graph) if graph.storages[s.storage].name == "a")
    return found


def test_a_map_is_unused_from_its_last_forward_use_to_its_first_backward_use() -> None:
    found = stash((Need.SHAPE,), (Need.ALL,))
    assert (found.leave, found.back) == (1, 3)


def test_a_map_whose_shape_alone_is_read_does_not_come_back() -> None:
    found = stash((Need.SHAPE,), (Need.NOTHING,))
    assert (found.back, found.information, found.reads_encoded) == (None, NOTHING, False)


def test_a_relu_before_a_pool_leaves_a_sign() -> None:
    found = stash((Need.SHAPE,), (*_of(SIGN), True))
    assert (found.information, found.reads_encoded) == (SIGN, True)


def test_a_relu_before_a_convolution_leaves_all_values_with_many_zeros() -> None:
    found = stash((Need.ALL,), (*_of(SIGN), True))
    assert (found.information, found.reads_encoded, found.has_zeros) == (ALL, False, True)


def test_two_readers_with_different_questions_leave_all_values() -> None:
    assert stash((*_of(SIGN), True), (*_of(INSIDE), True)).information == ALL


def test_one_reader_that_cannot_read_a_code_has_it_decoded_for_all() -> None:
    assert not stash((*_of(SIGN), True), (*_of(SIGN), False)).reads_encoded


def test_a_place_in_a_window_is_a_need_of_its_own() -> None:
    assert stash((*_of(WINDOW), True)).information == WINDOW


def test_a_storage_of_two_numbers_keeps_its_readers_need() -> None:
    """It is the codec that knows two numbers from their alphabet; the analysis only says who reads them how."""
    found = stash((Need.ALL, (), True), maker="aten.bernoulli_.default", alphabets={"a": (0.0, 2.0)})
    assert (found.information, found.reads_encoded) == (ALL, True)


def test_writing_in_backward_takes_everything() -> None:
    b = graphs.Builder("overwritten")
    b.given("x", 400)
    b.op("make", ["x"], {"a": 400})
    b.op("use", ["a"], {"y": 400})
    b.hold("y")
    b.tangent("g", 400)
    b.op("b", ["g", ("a", *_of(SIGN), True)], into={"a'": "a"}, traits=[Trait.IN_PLACE])
    (found,) = (s for s in stashes(b.build()) if s.leave == 1)
    assert (found.information, found.reads_encoded) == (ALL, False)


def _of(information: Information) -> tuple[Any, ...]:
    return information.need, information.detail


@pytest.mark.parametrize(
    ("maker", "has_zeros"),
    [
        ("aten.relu.default", True),
        ("aten.relu_.default", True),
        ("aten.threshold.default", True),
        ("aten.convolution.default", False),
        ("aten.gelu.default", False),
        ("aten.max_pool2d_with_indices.default", False),
        ("relu", True),
    ],
)
def test_zeros_come_from_ops_that_make_them(maker: str, has_zeros: bool) -> None:
    assert stash((Need.ALL,), maker=maker).has_zeros is has_zeros


def zeros_after(target: str, *reads: str, into: str | None = None) -> bool:
    """Whether `target`, reading some of a ReLU's output `r`, a convolution's `c` and noise `n`, leaves many zeros."""
    b = graphs.Builder("zeros")
    b.given("x", 400)
    b.op("relu", ["x"], {"r": 400}, target="aten.relu.default")
    b.op("conv", ["x"], {"c": 400}, target="aten.convolution.default")
    b.op("noise", ["x"], {"n": 400}, target="aten.bernoulli_.default")
    made = {"makes": {"z": 400}} if into is None else {"into": {"z": into}, "traits": [Trait.IN_PLACE]}
    b.op("after", reads, target=target, **made)  # type: ignore[arg-type]
    b.op("use", ["z"], {"y": 400})
    b.hold("y")
    b.tangent("g", 400)
    b.op("b", ["g", "z"], {"gz": 400})
    graph = b.build()
    (found,) = (s for s in stashes(graph) if s.storage == graph.values[b.value("z")].storage)
    return found.has_zeros


@pytest.mark.parametrize(
    ("target", "reads", "expected"),
    [
        ("aten.cat.default", ("r",), True),
        ("aten.cat.default", ("r", "c"), False),
        ("aten.clone.default", ("r",), True),
        ("aten.mul.Tensor", ("r", "n"), True),
        ("aten.mul.Tensor", ("c", "n"), False),
        ("aten.add.Tensor", ("r", "r"), False),
    ],
)
def test_zeros_survive_in_copies_and_products(target: str, reads: tuple[str, ...], expected: bool) -> None:
    assert zeros_after(target, *reads) is expected


def test_zeros_that_are_written_over_are_gone() -> None:
    assert not zeros_after("aten.add_.Tensor", "r", "c", into="r")


def test_a_sum_that_becomes_a_relu_in_place_has_zeros() -> None:
    assert zeros_after("aten.relu_.default", "c", into="c")


def beside(map_nbytes: int, statistic_nbytes: int) -> set[str]:
    """Names of what counts as a map among the results of one op, both of them read in backward."""
    b = graphs.Builder("norm")
    b.given("x", 4)
    b.op("norm", ["x"], {"map": map_nbytes, "mean": statistic_nbytes})
    b.op("use", ["map"], {"y": 4})
    b.hold("y")
    b.tangent("g", 4)
    b.op("b", ["g", "map", "mean"], {"gx": 4})
    graph = b.build()
    return {graph.storages[s.storage].name for s in stashes(graph) if s.is_map}


def test_a_statistic_beside_a_map_is_no_map() -> None:
    assert beside(4 * STATISTIC_RATIO * 4, 4 * 4) == {"map"}


def test_two_results_of_similar_size_are_both_maps() -> None:
    assert beside(4 * STATISTIC_RATIO * 4, 4 * 4 + 4) == {"map", "mean"}


def test_what_a_loss_computes_is_no_map() -> None:
    b = graphs.Builder("loss")
    b.given("x", 4)
    b.op("fc", ["x"], {"logits": 4096})
    b.op("softmax", ["logits"], into={"logs": "logits"}, target="aten._log_softmax.out")
    b.op("nll", ["logs"], {"loss": 4, "count": 4}, target="aten.nll_loss_forward.default")
    b.hold("loss")
    b.tangent("g", 4)
    b.op("nll_backward", ["g", "logs", "count"], {"gx": 4})
    assert not any(stash.is_map for stash in stashes(b.build()))


def test_what_no_plan_may_move_is_no_stash() -> None:
    graph = graphs.layered()
    names = {graph.storages[s.storage].name for s in stashes(graph)}
    assert names == {"c1", "p", "index", "c2", "c3", "n", "d", "m"}


def test_an_empty_storage_is_no_stash() -> None:
    assert beside(0, 0) == set()
