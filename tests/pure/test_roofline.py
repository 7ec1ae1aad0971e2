"""Roofline times against arithmetic done by hand."""

from __future__ import annotations

import pytest

from vdnn.cost.element_sizes import element_nbytes
from vdnn.cost.roofline import roofline, traffic_nbytes
from vdnn.errors import InvalidInput
from vdnn.hardware.device import Hardware, Tier
from vdnn.ir import Graph, Need, Op, Phase, Read, Role, Storage, Trait, Value

SHAPE = (10, 25)
NBYTES = 1000  # of SHAPE in float32
HARDWARE = Hardware("test", flops_per_s=1e6, memory_bandwidth_bytes_per_s=1e6, tiers=(Tier("device"),), launch_s=0.5)


def one_op(
    *,
    flops: int = 0,
    reads: tuple[Read, ...] = (Read(0),),
    traits: frozenset[Trait] = frozenset(),
    dtype: str = "float32",
) -> Graph:
    """An op that reads values 0 and/or 1 and writes value 2, all of the same shape in storages of their own."""
    return Graph(
        name="one op",
        ops=(Op("op", "aten.op", Phase.FORWARD, "", reads, (2,), flops, traits),),
        values=tuple(Value(f"v{i}", i, SHAPE, dtype) for i in range(3)),
        storages=tuple(Storage(f"s{i}", NBYTES, Role.FEATURE_MAP, dtype, (i,)) for i in range(3)),
        inputs=(0, 1),
        tangents=(),
        held=(2,),
    )


def expanded(graph: Graph, value: int, nbytes: int) -> Graph:
    storages = list(graph.storages)
    storages[value] = Storage("expanded", nbytes, Role.INPUT, "float32", (value,))
    return Graph("expanded", graph.ops, graph.values, tuple(storages), graph.inputs, graph.tangents, graph.held)


def test_an_op_with_much_arithmetic_takes_its_flops_at_peak_rate_plus_a_launch():
    assert roofline(one_op(flops=4_000_000), HARDWARE)[0].seconds == pytest.approx(4.0 + 0.5)


def test_an_op_with_little_arithmetic_takes_its_traffic_at_full_bandwidth_plus_a_launch():
    assert roofline(one_op(flops=1), HARDWARE)[0].seconds == pytest.approx(2 * NBYTES / 1e6 + 0.5)


def test_a_view_costs_nothing():
    assert roofline(one_op(traits=frozenset({Trait.VIEW})), HARDWARE)[0].seconds == 0.0


def test_a_value_read_twice_is_counted_once():
    graph = one_op(reads=(Read(0), Read(0)))
    assert traffic_nbytes(graph, graph.ops[0]) == 2 * NBYTES


def test_two_different_values_are_both_counted():
    graph = one_op(reads=(Read(0), Read(1)))
    assert traffic_nbytes(graph, graph.ops[0]) == 3 * NBYTES


@pytest.mark.parametrize("need", [Need.NOTHING, Need.SHAPE])
def test_a_value_of_which_only_the_shape_is_read_moves_no_bytes(need: Need):
    graph = one_op(reads=(Read(0), Read(1, need)))
    assert traffic_nbytes(graph, graph.ops[0]) == 2 * NBYTES


def test_an_expanded_value_moves_no_more_than_its_storage_holds():
    graph = expanded(one_op(reads=(Read(0),)), value=0, nbytes=4)
    assert traffic_nbytes(graph, graph.ops[0]) == NBYTES + 4


def test_half_precision_halves_the_traffic():
    graph = one_op(dtype="bfloat16")
    assert traffic_nbytes(graph, graph.ops[0]) == NBYTES


def test_the_table_has_one_cost_per_op_and_says_where_it_comes_from():
    table = roofline(one_op(), HARDWARE)
    assert [cost.source for cost in table.ops] == ["roofline"]


@pytest.mark.parametrize(
    ("dtype", "nbytes"),
    [
        ("bool", 1),
        ("float16", 2),
        ("bfloat16", 2),
        ("float32", 4),
        ("torch.int64", 8),
        ("complex64", 8),
        ("complex128", 16),
    ],
)
def test_an_element_has_the_size_of_its_dtype(dtype: str, nbytes: int):
    assert element_nbytes(dtype) == nbytes


def test_an_unknown_dtype_is_refused_with_the_known_ones():
    with pytest.raises(InvalidInput, match=r"no dtype is called 'float33'.*float32"):
        element_nbytes("float33")
