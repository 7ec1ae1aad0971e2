"""The vocabulary refuses nonsense, and knows how long a storage lives and who needs what of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pure import graphs
from vdnn.ir import Graph, Information, Lifetime, Need, Phase, Read, Role, Storage, Trait


def life(graph: Graph, name: str) -> Lifetime | None:
    return graph.lifetimes[graphs.storage(graph, name)]


def test_a_lifetime_cannot_be_empty() -> None:
    with pytest.raises(ValueError, match="begin=3, end=3"):
        Lifetime(3, 3)


def test_a_lifetime_contains_its_begin_and_not_its_end() -> None:
    assert [moment in Lifetime(1, 3) for moment in range(4)] == [False, True, True, False]


def test_a_storage_cannot_have_a_negative_size() -> None:
    with pytest.raises(ValueError, match="'x' has negative size: -4"):
        Storage("x", -4, Role.INPUT, "float32", ())


def test_a_stashed_map_lives_from_its_op_to_its_backward_reader() -> None:
    assert life(graphs.chain(3), "a1") == Lifetime(0, 5)


def test_inputs_live_through_the_whole_step() -> None:
    assert life(graphs.chain(3), "w2") == Lifetime(0, 6)


def test_a_tangent_lives_from_the_first_backward_step_to_its_last_use() -> None:
    assert life(graphs.chain(3), "g3") == Lifetime(3, 4)


def test_what_the_caller_holds_lives_to_the_end() -> None:
    assert life(graphs.chain(3), "dw3") == Lifetime(3, 6)


def test_an_in_place_write_does_not_begin_a_new_life() -> None:
    assert life(graphs.in_place_chain(), "c") == Lifetime(0, 8)


def test_a_storage_that_nothing_touches_has_no_life() -> None:
    graph = graphs.chain(1)
    lonely = Storage("lonely", 8, Role.FEATURE_MAP, "float32", ())
    assert replace(graph, storages=(*graph.storages, lonely)).lifetimes[-1] is None


def test_stashed_is_what_forward_makes_and_backward_reads() -> None:
    graph = graphs.chain(3)
    assert {graph.storages[s].name for s in graph.stashed} == {"a1", "a2"}


def test_backward_begins_at_the_first_backward_op() -> None:
    assert graphs.chain(3).num_forward == 3


def two_readers(one: tuple[Any, ...], other: tuple[Any, ...]) -> Information:
    b = graphs.Builder("two readers")
    b.given("x", 4)
    b.op("f", ["x"], {"a": 4})
    b.tangent("g", 4)
    b.op("b1", ["g", ("a", *one)], {"g1": 4})
    b.op("b2", ["g1", ("a", *other)], {"g2": 4})
    graph = b.build()
    return graph.backward_needs[graphs.storage(graph, "a")]


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        (Need.NOTHING, Need.SHAPE, Need.SHAPE),
        (Need.SIGN, Need.SHAPE, Need.SIGN),
        (Need.NOTHING, Need.ALL, Need.ALL),
        (Need.SIGN, Need.SIGN, Need.SIGN),
        (Need.SIGN, Need.WINDOW_INDEX, Need.ALL),
        (Need.BOOL, Need.ALL, Need.ALL),
    ],
)
def test_two_backward_readers_need_what_covers_both(one: Need, other: Need, both: Need) -> None:
    assert (two_readers((one,), (other,)), two_readers((other,), (one,))) == (Information(both),) * 2


ABOVE_ZERO, ABOVE_SIX = (0, 0.0, 0.0, 1.0, 0.0), (0, 6.0, 0.0, 1.0, 6.0)


def test_two_backward_readers_with_the_same_question_need_its_answer() -> None:
    assert two_readers((Need.SIGN, ABOVE_ZERO), (Need.SIGN, ABOVE_ZERO)) == Information(Need.SIGN, ABOVE_ZERO)


def test_two_backward_readers_with_different_questions_need_all_values() -> None:
    assert two_readers((Need.BOOL, ABOVE_ZERO), (Need.BOOL, ABOVE_SIX)) == Information(Need.ALL)


def test_a_reader_of_the_shape_leaves_the_other_readers_question() -> None:
    assert two_readers((Need.SHAPE,), (Need.BOOL, ABOVE_SIX)) == Information(Need.BOOL, ABOVE_SIX)


def test_an_op_knows_its_traits() -> None:
    noise = graphs.in_place_chain().ops[2]
    assert (noise.has(Trait.RANDOM), noise.has(Trait.VIEW)) == (True, False)


def malformed(**changes: object) -> str:
    with pytest.raises(ValueError, match="malformed") as caught:
        replace(graphs.chain(2), **changes)
    return str(caught.value)


def test_a_read_before_any_write_is_malformed() -> None:
    ops = graphs.chain(2).ops
    assert "'layer2' reads 'a1' before anything wrote it" in malformed(ops=(ops[1], ops[0], *ops[2:]))


def test_a_forward_op_after_a_backward_op_is_malformed() -> None:
    ops = graphs.chain(2).ops
    late = replace(ops[3], phase=Phase.FORWARD)
    assert "forward op 'layer1_backward' stands after a backward op" in malformed(ops=(*ops[:3], late))


def test_a_second_write_of_a_value_is_malformed() -> None:
    ops = graphs.chain(2).ops
    assert "'layer1' writes 'a1' a second time" in malformed(ops=(ops[0], ops[0], *ops[1:]))


def test_a_value_position_that_does_not_exist_is_malformed() -> None:
    ops = graphs.chain(2).ops
    assert "reads value 99 of" in malformed(ops=(replace(ops[0], reads=(Read(99),)), *ops[1:]))


def test_a_write_of_a_value_that_does_not_exist_is_malformed() -> None:
    ops = graphs.chain(2).ops
    assert "writes value 99 of" in malformed(ops=(replace(ops[0], writes=(*ops[0].writes, 99)), *ops[1:]))


def test_a_held_value_that_nothing_writes_is_malformed() -> None:
    assert "is never written" in malformed(ops=(), held=(3,))


def test_a_value_in_a_storage_that_does_not_exist_is_malformed() -> None:
    values = graphs.chain(2).values
    assert "lives in storage 99" in malformed(values=(replace(values[0], storage=99), *values[1:]))


def test_a_storage_that_lists_a_value_of_another_is_malformed() -> None:
    storages = graphs.chain(2).storages
    assert "which does not live in it" in malformed(storages=(replace(storages[0], values=(1,)), *storages[1:]))
