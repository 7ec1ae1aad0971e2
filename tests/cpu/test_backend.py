"""vdnn by its name in the ecosystem: `torch.compile(model, backend="vdnn")`."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Any

import pytest
import torch
from equivalence import assert_same_state, both
from nets import ConvNet, backward, images
from torch import Tensor, nn
from torch._dynamo.exc import BackendCompilerFailed

from vdnn.compile.backend import vdnn as backend

pytestmark = pytest.mark.any_device

OPTIONS: dict[str, Any] = {"hardware": "titan-x"}


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    """torch.compile counts captures per code object, and these tests share ConvNet.forward."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def names_of_backend() -> list[Any]:
    installed = [point.value for point in entry_points(group="torch_dynamo_backends") if point.name == "vdnn"]
    return ["vdnn"] if installed else []


def test_the_entry_point_of_an_installed_vdnn_leads_to_the_backend() -> None:
    points = [point for point in entry_points(group="torch_dynamo_backends") if point.name == "vdnn"]
    if not points:
        pytest.skip("vdnn runs from its source tree here and is not installed, so it has no entry points")
    assert points[0].load() is backend


@pytest.mark.parametrize("name", [backend, *names_of_backend()], ids=lambda name: name if isinstance(name, str) else "")
def test_a_compiled_model_trains_the_same(name: Any) -> None:
    plain = ConvNet()
    model = copy.deepcopy(plain)
    compiled = torch.compile(model, backend=name, dynamic=False, options=OPTIONS)

    def steps(either: Any) -> None:
        backward(either, images())
        with torch.no_grad():
            either(images())
        backward(either, images(6))

    both(plain, compiled, steps)
    assert_same_state(plain, model)


def test_unknown_options_are_all_listed_beside_the_known_ones() -> None:
    compiled = torch.compile(ConvNet(), backend=backend, options={"budgets": 1, "speed": 2})
    with pytest.raises(BackendCompilerFailed, match=r"unknown option\(s\) for vdnn: budgets, speed. Known: budget, "):
        compiled(images())


def test_a_budget_that_is_no_size_is_refused() -> None:
    compiled = torch.compile(ConvNet(), backend=backend, options={"budget": "12 GiBs"})
    with pytest.raises(BackendCompilerFailed, match="12 GiBs"):
        compiled(images())


def test_sizes_that_are_symbols_are_refused_with_the_way_out() -> None:
    compiled = torch.compile(ConvNet(), backend=backend, dynamic=True, options=OPTIONS)
    with pytest.raises(BackendCompilerFailed, match="dynamic=False"):
        compiled(images())


class InTwoPieces(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.first(x))
        torch._dynamo.graph_break()
        return torch.tanh(self.second(x)).sum()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # Dynamo looks at it
def test_a_piece_of_a_model_is_refused_with_a_budget_and_trains_without() -> None:
    """Each piece would have the whole budget for itself."""
    rows = torch.randn(64, 16)
    plain = InTwoPieces()
    model = copy.deepcopy(plain)
    both(plain, torch.compile(model, backend=backend, dynamic=False, options=OPTIONS), lambda net: backward(net, rows))
    assert_same_state(plain, model)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend=backend, dynamic=False, options={**OPTIONS, "budget": "90%"})
    with pytest.raises(BackendCompilerFailed, match=r"a piece of one: Dynamo hands[\s\S]*Call vdnn\.virtualize"):
        compiled(rows)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # Dynamo looks at it
def test_a_graph_that_is_captured_beside_a_step_in_flight_is_refused_with_a_budget() -> None:
    """Two functions with one dictionary of options are one account."""
    options = {**OPTIONS, "budget": "100%"}
    layers, rows = InTwoPieces(), torch.randn(64, 16)
    first, second = (
        torch.compile(call, backend=backend, dynamic=False, options=options)
        for call in (lambda x: torch.tanh(layers.first(x)), lambda x: torch.tanh(layers.second(x)).sum())
    )
    between = first(rows)
    with pytest.raises(BackendCompilerFailed, match="captured while 1 steps of others wait"):
        second(between)
    between.sum().backward()
    del between
    second(rows).backward()
