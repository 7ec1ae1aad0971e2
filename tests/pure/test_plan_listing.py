"""The annotated program and the short summary of a plan."""

from __future__ import annotations

import pytest

from pure import golden, graphs
from vdnn.plan import Recompute, listing, violations


@pytest.mark.parametrize("name", golden.GOLDEN)
def test_the_listing_is_the_golden_one(name: str) -> None:
    expected = golden.path(name).read_text(encoding="utf-8")
    assert listing(golden.GOLDEN[name]()) == expected, "accept with: PYTHONPATH=src:tests python -m pure.golden"


@pytest.mark.parametrize("name", golden.GOLDEN)
def test_golden_plans_hold(name: str) -> None:
    assert violations(golden.GOLDEN[name]()) == []


def test_one_line_bears_the_peak() -> None:
    marked = [line for line in listing(graphs.plan(graphs.chain(3))).splitlines() if "<-- peak 640 B" in line]
    assert len(marked) == 1
    assert "linear_backward(g3, a2, w3)" in marked[0]


def test_a_decision_stands_on_the_line_of_its_storage_with_its_reason() -> None:
    text = listing(graphs.plan(graphs.chain(3), {"a1": Recompute(1, 4)}, reason="cheap to redo"))
    (line,) = [line for line in text.splitlines() if "a1 = " in line]
    assert line.split() == [
        "0",
        "layers.1",
        "a1",
        "=",
        "linear(a0,",
        "w1)",
        "100",
        "B",
        "recompute",
        "1..4",
        "#",
        "cheap",
        "to",
        "redo",
    ]


def test_every_op_has_a_line() -> None:
    graph = graphs.in_place_chain()
    text = listing(graphs.plan(graph))
    assert all(f"{op.target}(" in text for op in graph.ops)


def test_a_plan_prints_as_a_short_summary() -> None:
    plan = graphs.plan(graphs.problem(graphs.chain(3), budget_nbytes=1024), {"a1": Recompute(1, 4)})
    assert str(plan).splitlines() == [
        "chain(3): by hand on testbench, 6 ops, budget 1.00 KiB",
        "peak 550 B, step time 7.00 s (stalls 0.0 us)",
        "decisions: 1 recompute",
        "at the peak: 30 B parameter, 100 B input, 100 B output, 100 B feature map, 200 B gradient map, 20 B gradient",
    ]
