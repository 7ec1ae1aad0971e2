"""A graph written out as text is the program that the graph is: same results, every tensor gone at its last use."""

from __future__ import annotations

import math
import operator
import traceback
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from vdnn.capture.copied_graph import GraphWithoutCode
from vdnn.rewrite.source import Mark, Source, Speller, source_of

aten = torch.ops.aten


def module_of(build: Any, **constants: Any) -> fx.GraphModule:
    graph = fx.Graph()
    build(graph)
    root = torch.nn.Module()
    for name, value in constants.items():
        setattr(root, name, value)
    return GraphWithoutCode(root, graph)


def chain(graph: fx.Graph) -> None:
    x, y, _ = (graph.placeholder(name) for name in ("x", "y", "unread"))
    product = graph.call_function(aten.mul.Tensor, (x, y))
    graph.call_function(aten.neg.default, (product,))
    total = graph.call_function(aten.sum.dim_IntList, (product, [0]), {"keepdim": True, "dtype": torch.float64})
    graph.output((total, None))


def announced(node: fx.Node, speller: Speller) -> Mark | None:
    return Mark(f"{speller.named(seen.append)}({node.name!r})", f"{speller.named(checked.append)}({node.name})")


seen: list[str] = []
checked: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    seen.clear()
    checked.clear()


def test_a_program_computes_what_its_graph_says_and_empties_its_list() -> None:
    arguments = [torch.arange(3.0), torch.full((3,), 2.0), torch.zeros(1)]
    total, nothing = source_of(module_of(chain), "forward").function()(arguments)
    assert nothing is None
    assert arguments == []
    assert torch.equal(total, torch.tensor([6.0], dtype=torch.float64))


def test_a_tensor_is_gone_after_its_last_reader() -> None:
    def build(graph: fx.Graph) -> None:
        x = graph.placeholder("x")
        twice = graph.call_function(aten.mul.Tensor, (x, 2))
        graph.call_function(note, (twice,))
        graph.call_function(is_gone)
        graph.output((graph.call_function(torch.zeros, (1,)),))

    refs: list[weakref.ref[Tensor]] = []
    gone: list[bool] = []

    def note(tensor: Tensor) -> None:
        refs.append(weakref.ref(tensor))

    def is_gone() -> None:
        gone.append(refs[0]() is None)

    source_of(module_of(build), "forward").function()([torch.ones(2)])
    assert gone == [True]


def test_marks_come_before_their_calls_and_checks_after_also_where_nobody_reads_the_result() -> None:
    source = source_of(module_of(chain), "forward", announced)
    inputs = torch.arange(3.0), torch.full((3,), 2.0), torch.zeros(1)
    source.function()(list(inputs))
    assert (seen, checked) == ([], [])
    source.function(marked=True)(list(inputs))
    assert (seen, checked) == (["mul_tensor", "neg_default", "sum_dim_int_list"], [])
    source.function(marked=True, checked=True)(list(inputs))
    assert [tuple(result.shape) for result in checked] == [(3,), (3,), (1,)]


def test_what_is_no_number_or_word_has_a_name_and_equal_layouts_share_one() -> None:
    speller = Speller()
    assert speller.spelled([1, (True, None), "a'b", 0.5, {"k": -1}, slice(None, 2)]) == (
        "[1, (True, None, ), \"a'b\", 0.5, {'k': -1}, slice(None, 2, None)]"
    )
    assert speller.spelled(torch.float32) == speller.spelled(torch.float32) != speller.spelled(torch.float64)
    assert speller.named((1, 2)) == speller.named((*[1], 2))
    assert math.isinf(speller.values[speller.spelled(math.inf)])


def test_constants_and_arguments_whose_name_is_a_keyword() -> None:
    def build(graph: fx.Graph) -> None:
        held = graph.create_node("get_attr", "held")
        pair = graph.call_function(dict, (), {"from": held, "to": 3})
        graph.output((graph.call_function(operator.getitem, (pair, "from")),))

    held = torch.ones(2)  # of the module, not of the list
    (result,) = source_of(module_of(build, held=torch.nn.Parameter(held)), "forward").function()([])
    assert torch.equal(result, held)


def test_a_traceback_shows_the_line_that_failed() -> None:
    source: Source = source_of(module_of(chain), "forward")
    with pytest.raises(RuntimeError) as failed:
        source.function()([torch.ones(2), torch.ones(3), torch.zeros(1)])
    assert "mul_tensor = K_0(x, y)" in "".join(traceback.format_tb(failed.tb))
