"""Whole networks under gist: the bits of plain PyTorch in the bytes that were simulated; rounding only where asked."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from capture_once import captured_once
from equivalence import (
    Outcome,
    assert_measured_as_simulated,
    assert_same,
    executors,
    train,
    virtualize,
    with_loss_outside,
)
from small_networks import BATCH, small_network
from test_zoo_equivalence import NAMES
from torch import nn

import vdnn
from larger import all_but_larger, larger
from vdnn.errors import InvalidInput

pytestmark = pytest.mark.any_device

STEPS = 2
ZOO = tuple(name for name in NAMES if name != "inception-v3")
"""Its blocks are inception-v4's, and it takes the longest of all to capture."""

FEW = ("alexnet", "overfeat", "resnet50", "unet", "vit", "gpt2")


def virtual_copy(name: str, **asked: Any) -> tuple[nn.Module, Any]:
    """A copy of a small network, and its step captured ahead of time."""
    spec, original, args, _ = small_network(name, STEPS)
    model = copy.deepcopy(original)
    with captured_once(name, BATCH):
        return model, virtualize(spec.step(model), sample=args, **asked)


def num_too_dense(virtual: Any) -> int:
    return sum(executor.encodings.found.num_too_dense for executor in executors(virtual))


def assert_as_simulated_unless_too_dense(virtual: Any) -> None:
    """A map that is denser than planned stays whole, and its bytes are then more than the plan counts."""
    if not num_too_dense(virtual):
        assert_measured_as_simulated(virtual)


@pytest.mark.parametrize("name", all_but_larger(FEW, ZOO))
def test_a_network_of_the_zoo_trains_exactly(name: str) -> None:
    _, _, args, expected = small_network(name, STEPS)
    # Maps of few numbers vary much from step to step.
    model, virtual = virtual_copy(name, strategy="gist", density=0.8)
    assert_same(expected, train(virtual, model, args, STEPS))
    assert_as_simulated_unless_too_dense(virtual)


@pytest.mark.parametrize("name", ["alexnet", *larger("resnet50", "unet", "gpt2")])
def test_a_module_captured_when_it_is_called_trains_exactly(name: str) -> None:
    spec, model, args, expected = small_network(name, STEPS)
    twin = virtualize(copy.deepcopy(model), strategy="gist")
    assert_same(expected, train(with_loss_outside(twin, spec.loss), twin, args, STEPS))
    assert_as_simulated_unless_too_dense(twin)


@pytest.mark.parametrize(
    ("name", "attention"), [("gpt2", "sdpa"), *larger(("gpt2", "eager"), ("bert", "eager"), ("vit", "eager"))]
)
def test_a_transformers_model_trains_exactly(name: str, attention: str) -> None:
    from test_transformers_equivalence import CASES, loss_of  # here: it skips whoever imports it without the library

    make, inputs = CASES[name]
    torch.manual_seed(0)
    model = make(attention).train()
    names, args = tuple(inputs), tuple(inputs.values())
    plain = copy.deepcopy(model)
    virtual = virtualize(loss_of(model, names), sample=args, strategy="gist")
    assert_same(train(loss_of(plain, names), plain, args, STEPS), train(virtual, model, args, STEPS))
    assert_as_simulated_unless_too_dense(virtual)


@pytest.mark.parametrize("name", ["alexnet", "vgg16", "overfeat"])
def test_the_papers_networks_hold_less_between_forward_and_backward(name: str) -> None:
    spec, model, args, _ = small_network(name, STEPS)
    with captured_once(name, BATCH):
        kept, encoded = (
            vdnn.plan(spec.step(model), args, hardware="titan-x", strategy=s) for s in ("keep-all", "gist")
        )
    at = kept.problem.graph.num_forward - 1
    stashed = [int(plan.timeline.total()[(plan.timeline.moments == at).nonzero()[0][-1]]) for plan in (kept, encoded)]
    assert stashed[1] < stashed[0]


FORMATS = {"fp16": 1e-3, "bf16": 8e-3, "fp10": 6e-2, "fp8": 1.2e-1}
"""How far gradients may be from the exact ones, relative to their norm: some roundings to nearest of each format."""


def lossy(name: str, front_end: str = "ahead of time", **allowed: Any) -> tuple[Outcome, Outcome, Any]:
    """One step of a network, plain and rounded."""
    spec, original, args, expected = small_network(name, 1)
    if front_end == "ahead of time":
        model, virtual = virtual_copy(name, **allowed)
    else:
        model = copy.deepcopy(original)
        virtual = virtualize(spec.step(model), **allowed)
    return expected, train(virtual, model, args, 1), virtual


def relative_error(plain: Outcome, virtual: Outcome) -> float:
    names = [name for name, tensor in plain.tensors.items() if "gradient" in name and tensor is not None]
    exact, rounded = (torch.cat([o.tensors[n].flatten().double() for n in names]) for o in (plain, virtual))  # type: ignore[union-attr]
    return float((exact - rounded).norm() / exact.norm())


@pytest.mark.parametrize("front_end", ["ahead of time", *larger("just in time")])
@pytest.mark.parametrize("format", FORMATS)
def test_rounding_leaves_the_first_loss_alone_and_gradients_close(format: str, front_end: str) -> None:
    plain, rounded, virtual = lossy("alexnet", front_end, lossy=format)
    assert torch.equal(plain.losses[0], rounded.losses[0])
    assert 0 < relative_error(plain, rounded) < FORMATS[format]
    assert_as_simulated_unless_too_dense(virtual)


@pytest.mark.parametrize("format", ["fp16", "fp10", "fp8"])
def test_a_strategy_that_names_its_format_is_gist_with_that_format(format: str) -> None:
    _, named, virtual = lossy("alexnet", strategy=f"gist-{format}")
    _, asked, _ = lossy("alexnet", lossy=format)
    assert_same(named, asked)
    (executor,) = executors(virtual)
    assert executor.plan.strategy == f"gist-{format}"


@pytest.mark.parametrize("name", ["vit", *larger("densenet121")])
def test_normalized_networks_keep_their_statistics_and_stay_close(name: str) -> None:
    plain, rounded, _ = lossy(name, lossy="fp16")
    assert relative_error(plain, rounded) < FORMATS["fp16"]


def test_the_error_that_is_reported_is_the_error_that_is_found() -> None:
    plain, rounded, virtual = lossy("alexnet", lossy="fp8")
    (piece,) = vdnn.report(virtual).pieces
    assert piece.gradient_error is not None
    assert piece.gradient_error.relative == pytest.approx(relative_error(plain, rounded), rel=1e-3)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"lossy": "fp3"}, "lossy is one of fp16, bf16, fp10, fp8, or None for exact; not 'fp3'"),
        ({"lossy": "fp16", "strategy": "offload"}, "strategy 'offload' never rounds: choose 'gist'"),
        ({"lossy": "fp16", "strategy": "gist-fp8"}, "'gist-fp8' rounds to fp8, but lossy='fp16' was given: say one"),
        ({"strategy": "gist", "density": 0.0}, "density is a share above 0 and up to 1, not 0.0"),
        ({"strategy": "gist", "density": "half"}, "density is a share above 0 and up to 1, not 'half'"),
    ],
)
def test_contradictions_are_refused_before_anything_runs(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        virtualize(nn.Linear(4, 4), sample=(torch.ones(2, 4),), **asked)
    assert words in str(caught.value)
