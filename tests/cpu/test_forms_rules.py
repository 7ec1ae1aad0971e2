"""Which ops run on a part of the batch, and that they compute there what they compute on all of it.

Every function here is a step of its own: run in two chunks its gradients are those of the plain step, and the op it is
about was cut (or was not, where samples are mixed).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from exactness import with_shift
from formed import graphs_of_forms, in_form, joint_of
from torch import Tensor, fx, nn

from vdnn.compile.forms import analysis as analyses
from vdnn.compile.forms.parts_writer import bounds_of
from vdnn.compile.forms.prepare import prepare
from vdnn.compile.forms.rows import Rows, Split, TracedCall
from vdnn.ir import Graph

Function = Callable[[Any, Tensor], Tensor]

IMAGES, TOKENS, ROWS = (6, 4, 8, 8), (6, 5, 8), (6, 8)


def layer(module: nn.Module) -> Function:
    return lambda parts, x: parts.layer(x)


def heads(x: Tensor) -> Tensor:
    return x.view(6, 5, 2, 4).transpose(1, 2)


CUT: dict[str, tuple[tuple[int, ...], Function, nn.Module | None]] = {
    "convolution": (IMAGES, layer, nn.Conv2d(4, 6, 3, stride=2, padding=1)),
    "max_pool2d_with_indices": (IMAGES, layer, nn.MaxPool2d(2)),
    "avg_pool2d": (IMAGES, layer, nn.AvgPool2d(2)),
    "_adaptive_avg_pool2d": (IMAGES, layer, nn.AdaptiveAvgPool2d(3)),
    "reflection_pad2d": (IMAGES, layer, nn.ReflectionPad2d(1)),
    "native_group_norm": (IMAGES, layer, nn.GroupNorm(2, 4)),
    "native_layer_norm": (TOKENS, layer, nn.LayerNorm(8)),
    "_prelu_kernel": (IMAGES, layer, nn.PReLU(4)),
    "addmm": (TOKENS, layer, nn.Linear(8, 3)),
    "gelu": (ROWS, layer, nn.GELU()),
    "embedding": (ROWS, lambda p, x: p.layer((x[:, 0] > 0).long()) * x, nn.Embedding(3, 8)),
    "_softmax": (TOKENS, lambda p, x: x.softmax(-1), None),
    "cumsum": (ROWS, lambda p, x: x.cumsum(1), None),
    "bmm": (TOKENS, lambda p, x: heads(x) @ heads(x).mT, None),
    "_scaled_dot_product_flash_attention_for_cpu": (
        TOKENS,
        lambda p, x: F.scaled_dot_product_attention(heads(x), heads(x), heads(x), is_causal=True),
        None,
    ),
    "cat": (ROWS, lambda p, x: torch.cat([x, x.exp()], dim=1).sin(), None),
    "stack": (ROWS, lambda p, x: torch.stack([x, x.exp()], dim=1).sin(), None),
    "slice_backward": (IMAGES, lambda p, x: x[:, 1:3, ::2].sin(), None),
    "select_backward": (TOKENS, lambda p, x: x[:, 0].sin(), None),
    "constant_pad_nd": (IMAGES, lambda p, x: F.pad(x, (1, 2, 0, 1)), None),
    "amax": (TOKENS, lambda p, x: x.amax(2), None),
    "mean": (IMAGES, lambda p, x: x.mean((2, 3)), None),
    "var": (TOKENS, lambda p, x: x.var(-1), None),
    "clone": (TOKENS, lambda p, x: x.permute(2, 0, 1).contiguous().sin(), None),
    "where": (ROWS, lambda p, x: torch.where(x > 0, x, torch.linspace(0, 1, 8).double()), None),
}


def step_of(kind: str, model: nn.Module) -> Callable[[Tensor], Tensor]:
    return lambda x: model(x).tanh().square().sum()


def model_of(kind: str) -> tuple[nn.Module, Tensor]:
    """Something between a shift with a gradient of its own and a sum, so that the op has samples before and after."""
    shape, function, module = CUT[kind]
    torch.manual_seed(0)
    x = torch.randn(shape).double()
    parts = {} if module is None else {"layer": copy.deepcopy(module)}
    call = layer(module) if module is not None and function is layer else function
    return with_shift(lambda p, x: call(p, x.sin()), x, **parts).double(), x


def num_cut(step: Callable[..., Any], x: Tensor, name: str) -> int:
    """How many more of these ops run in two chunks than in one piece."""

    def count(graph: Graph) -> int:
        return sum(op.target.split(".")[1].rstrip("_") == name for op in graph.ops)

    graphs = graphs_of_forms(step, (x,), only="all steps in 2 chunks")
    return count(graphs["all steps in 2 chunks"]) - count(graphs["traced"])


@pytest.mark.parametrize("kind", CUT)
def test_it_runs_in_chunks_with_the_gradients_of_the_whole(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = model_of(kind)
    step = step_of(kind, model)
    assert num_cut(step, x, kind) >= 1
    parameters = tuple(model.parameters())
    expected = torch.autograd.grad(step(x), parameters)
    found = torch.autograd.grad(in_form(monkeypatch, "all steps in 2 chunks", step, (x,))(x), parameters)
    for ours, plain in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-9, atol=1e-12)


MIXED: dict[str, tuple[tuple[int, ...], Function]] = {
    "cumsum": (ROWS, lambda p, x: x.cumsum(0)),
    "_softmax": (ROWS, lambda p, x: x.softmax(0)),
    "flip": (ROWS, lambda p, x: x.flip(0)),
    "cat": (ROWS, lambda p, x: torch.cat([x, x], dim=0).sin()),
    "_native_batch_norm_legit": (IMAGES, lambda p, x: F.batch_norm(x, None, None, training=True)),
    "bernoulli": (ROWS, lambda p, x: F.dropout(x, 0.3)),
}


@pytest.mark.parametrize("kind", MIXED)
def test_what_needs_all_samples_at_once_runs_whole(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shape, function = MIXED[kind]
    torch.manual_seed(0)
    x = torch.randn(shape).double()
    model = with_shift(lambda p, x: function(p, x.sin()), x)
    step = step_of(kind, model.double())
    assert num_cut(step, x, kind) == 0
    virtual = in_form(monkeypatch, "all steps in 2 chunks", step, (x,))
    torch.manual_seed(1)
    (expected,) = torch.autograd.grad(step(x), tuple(model.parameters()))
    torch.manual_seed(1)
    (found,) = torch.autograd.grad(virtual(x), tuple(model.parameters()))
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_an_op_that_does_not_keep_its_rule_runs_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(call: TracedCall) -> Split:
        rows = call.rows("self")
        call.take(call["self"], rows)
        return call.split(Rows(1, 1))

    monkeypatch.setitem(analyses.RULES, "flip", wrong)  # type: ignore[arg-type]
    x = torch.randn(6, 6).double()
    model = with_shift(lambda p, x: x.sin().flip(1).sin(), x).double()
    step = step_of("flip", model)
    assert num_cut(step, x, "flip") == 0
    (expected,) = torch.autograd.grad(step(x), tuple(model.parameters()))
    (found,) = torch.autograd.grad(in_form(monkeypatch, "all steps in 2 chunks", step, (x,))(x), [*model.parameters()])
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("batch", [4, 5, 7])
@pytest.mark.parametrize("parts", [2, 3, 4])
def test_parts_cover_the_batch_and_differ_by_one_sample_at_most(batch: int, parts: int) -> None:
    bounds = bounds_of(batch, parts)
    sizes = [stop - start for start, stop in bounds]
    assert [index for start, stop in bounds for index in range(start, stop)] == list(range(batch))
    assert max(sizes) - min(sizes) <= 1


CROSS_ENTROPIES: dict[str, tuple[bool, dict[str, Any]]] = {
    "plain": (False, {}),
    "ignored targets": (False, {"ignore_index": 1}),
    "class weights": (True, {}),
    "both": (True, {"ignore_index": 2}),
    "sum": (False, {"reduction": "sum"}),
}


@pytest.mark.parametrize("shape", [(64,), (3, 7, 9)], ids=["labels", "pixels"])
@pytest.mark.parametrize("kind", CROSS_ENTROPIES)
def test_cross_entropy_as_sum_and_count_is_the_mean(kind: str, shape: tuple[int, ...]) -> None:
    """To the bit where targets are counted; weights are added up in another order than the kernel does."""
    is_weighted, options = CROSS_ENTROPIES[kind]
    torch.manual_seed(0)
    logits = torch.randn(shape[0], 4, *shape[1:], requires_grad=True)
    args = (logits, torch.randint(4, shape), *[torch.tensor([0.3, 1.7, 0.9, 1.1])][: int(is_weighted)])
    with joint_of(lambda *args: F.cross_entropy(*args, **options), args) as joint:
        prepared = prepare(joint).joint
    loss, *gradients = fx.Interpreter(prepared).run(*(tensor.detach() for tensor in args), torch.ones(()))[0:2]
    expected = F.cross_entropy(*args, **options)
    pairs = ((loss, expected.detach()), (gradients[0], torch.autograd.grad(expected, logits)[0]))
    assert not is_weighted or all(torch.allclose(found, wanted, rtol=1e-6, atol=1e-9) for found, wanted in pairs)
    assert is_weighted or all(torch.equal(found, wanted) for found, wanted in pairs)
