"""Layers are found again in ops, each with its own backward."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pure import graphs
from vdnn.ir import Graph, Role
from vdnn.known_ops.known_op import LayerKind
from vdnn.papers.layer_network import LayerNetwork
from vdnn.plan.model.layers import Layer, kind_of, layers


def two_convolutions() -> Graph:
    """images, conv1, relu, pool, conv2, relu, softmax: moments 0 to 6; backward 7 to 12."""
    net = LayerNetwork("two convolutions", 1)
    x = net.pooling("pool", net.convolution("conv1", net.images(1, 4, 4), 2, 3, padding=1), 2, 2)
    net.softmax("softmax", net.convolution("conv2", x, 2, 1))
    return net.graph()


def named(graph: Graph, name: str) -> Layer:
    return next(layer for layer in layers(graph) if graph.ops[layer.moment].name == name)


@pytest.mark.parametrize(
    ("target", "kind"),
    [
        ("aten.convolution.default", LayerKind.CONV),
        ("aten.max_pool2d_with_indices.default", LayerKind.POOL),
        ("aten._adaptive_avg_pool2d.default", LayerKind.POOL),
        ("aten.avg_pool2d.default", LayerKind.POOL),
        ("aten.convolution_backward.default", LayerKind.OTHER),
        ("aten.addmm.default", LayerKind.OTHER),
        ("conv2d", LayerKind.CONV),
    ],
)
def test_a_kind_follows_from_the_name_of_the_op(target: str, kind: LayerKind) -> None:
    assert kind_of(replace(graphs.chain(1).ops[0], target=target)) is kind


@pytest.mark.parametrize("name", ["conv1", "conv1.relu", "pool", "conv2", "conv2.relu", "softmax"])
def test_every_layer_finds_its_backward(name: str) -> None:
    graph = two_convolutions()
    backward = named(graph, name).backward
    assert backward is not None
    assert graph.ops[backward].name == f"{name}_backward"


def test_x_is_the_map_a_layer_takes_and_not_its_weight() -> None:
    graph = two_convolutions()
    x = named(graph, "conv2").x
    assert x is not None
    assert (graph.storages[x].name, graph.storages[x].role) == ("pool", Role.FEATURE_MAP)


def test_views_are_no_layers() -> None:
    b = graphs.Builder("with a view")
    b.given("x", 4)
    b.view("view", b.op("f", ["x"], {"y": 4}))
    assert [layer.moment for layer in layers(b.build())] == [0]


def test_a_module_that_runs_twice_has_two_backwards_in_reverse() -> None:
    b = graphs.Builder("twice")
    b.given("x", 4)
    conv = {"target": "aten.convolution.default", "module": "shared"}
    backward = {"target": "aten.convolution_backward.default", "module": "shared"}
    b.op("first", ["x"], {"y": 4}, **conv)  # type: ignore[arg-type]
    b.op("second", ["y"], {"z": 4}, **conv)  # type: ignore[arg-type]
    b.tangent("gz", 4)
    b.op("second_backward", ["gz", "y"], {"gy": 4}, **backward)  # type: ignore[arg-type]
    b.op("first_backward", ["gy", "x"], {"gx": 4}, **backward)  # type: ignore[arg-type]
    assert [(layer.moment, layer.backward) for layer in layers(b.build())] == [(0, 3), (1, 2)]


def test_a_backward_whose_module_was_lost_is_found_by_what_it_reads() -> None:
    graph = two_convolutions()
    ops = tuple(replace(op, module="") if op.name == "conv1_backward" else op for op in graph.ops)
    backward = named(replace(graph, ops=ops), "conv1").backward
    assert backward is not None
    assert ops[backward].name == "conv1_backward"
