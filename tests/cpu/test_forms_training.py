"""Networks train in chunks as they train in one piece, and take the bytes that were simulated.

In float64, where another order of additions is 1e-15 and a mistake is not. Batches of 5, which no number of chunks
divides.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from blocks import beside_nbytes
from capture_once import captured_once
from equivalence import Outcome, assert_measured_as_simulated, executors, gradients, train, virtualize
from formed import forming, graphs_of_forms, in_form, joint_of, least_nbytes, offered_names
from nets import ConvNet, images, rows
from torch import Tensor, nn

from larger import all_but_larger, larger
from vdnn.capture.nodes import count_forward_outputs
from vdnn.compile.forms import forms
from vdnn.models import MODELS, ModelSpec
from vdnn.plan.model.problem import EXACT_FORMS
from vdnn.units import Nbytes

pytestmark = pytest.mark.any_device

TOLERANCE = 1e-9
BATCH = 5


def assert_close(expected: Outcome, found: Outcome) -> None:
    losses = zip(expected.losses, found.losses, strict=True)
    pairs = {f"loss {i}": pair for i, pair in enumerate(losses)}
    pairs |= {name: (tensor, found.tensors[name]) for name, tensor in expected.tensors.items()}
    wrong = {name: error for name, pair in pairs.items() if (error := _error(*pair)) > TOLERANCE}
    assert not wrong, wrong
    assert torch.equal(expected.rng_state, found.rng_state), "the generator was advanced differently"


def _error(expected: Tensor | None, found: Tensor | None) -> float:
    if expected is None or found is None:
        return 0.0 if expected is found else float("inf")
    expected, found = expected.double(), found.double()
    # The gradient of a bias before a BatchNorm is zero but for rounding: there is nothing to be relative to.
    return float((expected - found).norm() / max(float(expected.norm()), 1e-6))


@cache
def network(name: str) -> tuple[ModelSpec, nn.Module, tuple[Tensor, ...], Outcome]:
    torch.manual_seed(0)
    spec = MODELS[name].small()
    model, sample = spec.build().double(), spec.sample(BATCH)
    args = tuple(tensor.double() if tensor.is_floating_point() else tensor for tensor in sample)
    plain = copy.deepcopy(model)
    return spec, model, args, train(spec.step(plain), plain, args, steps=2)


CHUNKS = ("large steps in 2 chunks", "all steps in 4 chunks", "batch in 4 chunks")
FEW = (("vgg16", CHUNKS[2]), ("vit", CHUNKS[0]), ("gpt2", CHUNKS[2]))


@pytest.mark.parametrize("form", ["all steps in 4 chunks", *larger("large steps in 2 chunks", "batch in 4 chunks")])
def test_a_network_without_dropout_trains_in_chunks_as_it_does_in_one_piece(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trains_in_chunks("unet", form, monkeypatch)


@pytest.mark.cpu_only("fused dropout and attention draw for the whole batch at once: a form in chunks is not offered")
@pytest.mark.parametrize(("name", "form"), all_but_larger(FEW, product(("vgg16", "vit", "gpt2"), CHUNKS)))
def test_a_network_trains_in_chunks_as_it_does_in_one_piece(
    name: str, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trains_in_chunks(name, form, monkeypatch)


def trains_in_chunks(name: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, original, args, expected = network(name)
    model = copy.deepcopy(original)
    with captured_once(name, BATCH):
        virtual = in_form(monkeypatch, form, spec.step(model), args)
    assert_close(expected, train(virtual, model, args, steps=2))
    assert_measured_as_simulated(virtual)


class Small(nn.Module):
    """Convolutions, a pool, dropout and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.pool, self.dropout, self.linear = nn.MaxPool2d(2), nn.Dropout(0.4), nn.Linear(8 * 16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.second(self.first(x).relu()).relu())
        return self.linear(self.dropout(x.flatten(1)))


def small_step(model: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda x, target: F.cross_entropy(model(x), target)


def small_sample(batch: int = BATCH) -> tuple[Tensor, Tensor]:
    return images(batch).double(), torch.arange(batch) % 4


draws_at_once = pytest.mark.cpu_only("fused dropout draws for the whole batch at once: no form in chunks is offered")
FORMS = [
    "large steps in 4 chunks",
    pytest.param("batch in 4 chunks", marks=draws_at_once),
    "all steps in 4 chunks",
]


@pytest.mark.parametrize("form", FORMS)
def test_a_form_runs_in_the_least_that_offloading_needs(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, args = Small().double(), small_sample()
    plain = copy.deepcopy(model)
    expected = train(small_step(plain), plain, args)
    graph = graphs_of_forms(small_step(model), args, only=form)[form]
    budget = Nbytes(least_nbytes(graph) + 2 * beside_nbytes(graph))
    virtual = in_form(monkeypatch, form, small_step(model), args, strategy="offload", budget=budget)
    assert_close(expected, train(virtual, model, args))
    assert_measured_as_simulated(virtual)
    (executor,) = executors(virtual)
    assert executor.plan.decisions


@pytest.mark.parametrize("form", ["large steps in 2 chunks", "all steps in 2 chunks"])
def test_statistics_of_the_batch_are_those_of_all_its_samples(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, args = ConvNet().double(), small_sample()
    plain = copy.deepcopy(model)
    virtual = in_form(monkeypatch, form, small_step(model), args)
    assert_close(train(small_step(plain), plain, args), train(virtual, model, args))
    assert_measured_as_simulated(virtual)


def test_gradients_are_multiplied_by_the_gradient_of_the_loss_each_time_backward_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    model, args = Small().double().eval(), small_sample()
    virtual = in_form(monkeypatch, "batch in 2 chunks", small_step(model), args)
    found, expected = [], []
    for step, results in ((virtual, found), (small_step(model), expected)):
        loss = step(*args)
        for factor in (3.0, 0.7):
            (factor * loss).backward(retain_graph=True)
            results.append(gradients(model))
            model.zero_grad()
    for ours, plain in zip(found, expected, strict=True):
        assert max(_error(plain[name], ours[name]) for name in plain) < TOLERANCE


def test_the_gradient_of_an_input_is_that_of_all_its_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, (x, target) = Small().double().eval(), small_sample()
    virtual = in_form(monkeypatch, "batch in 2 chunks", small_step(model), (x.requires_grad_(), target))
    (found,) = torch.autograd.grad(virtual(x, target), x)
    (expected,) = torch.autograd.grad(small_step(model)(x, target), x)
    assert _error(expected, found) < TOLERANCE


def test_a_module_with_its_loss_outside_runs_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, (x, target) = Small().double(), small_sample()
    plain = copy.deepcopy(model)
    virtual = in_form(monkeypatch, "all steps in 2 chunks", model, (x,))
    expected = train(small_step(plain), plain, (x, target))
    assert_close(expected, train(lambda *args: F.cross_entropy(virtual(args[0]), args[1]), model, (x, target)))


@draws_at_once
def test_a_form_runs_when_the_step_is_captured_just_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    # Dynamo hands parameters over as plain inputs: which of them hold samples is known from its own names.
    torch.manual_seed(0)
    model, args = Small().double(), small_sample()
    plain = copy.deepcopy(model)
    expected = train(small_step(plain), plain, args)
    with forming(monkeypatch, "batch in 2 chunks"):
        virtual = virtualize(small_step(model))
        assert_close(expected, train(virtual, model, args))


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cross entropy": lambda y, t: F.cross_entropy(y, t),
    "cross entropy with ignored targets": lambda y, t: F.cross_entropy(y, t, ignore_index=0),
    "cross entropy with class weights": lambda y, t: F.cross_entropy(y, t, weight=torch.linspace(0.5, 2, 4).double()),
    "cross entropy with smooth labels": lambda y, t: F.cross_entropy(y, t, label_smoothing=0.1),
    "sum of cross entropies": lambda y, t: F.cross_entropy(y, t, reduction="sum"),
    "cross entropies averaged by hand": lambda y, t: F.cross_entropy(y, t, reduction="none").mean(),
    "mean": lambda y, t: y.square().mean(),
    "mean of rows": lambda y, t: y.square().mean(0).sum(),
    "sum": lambda y, t: y.tanh().sum(),
    "squared error": lambda y, t: F.mse_loss(y, F.one_hot(t, 4).double()),
    "absolute error": lambda y, t: F.l1_loss(y, F.one_hot(t, 4).double()),
    "smooth absolute error": lambda y, t: F.smooth_l1_loss(y, F.one_hot(t, 4).double(), beta=0.5),
    "huber": lambda y, t: F.huber_loss(y, F.one_hot(t, 4).double(), delta=0.5),
    "binary cross entropy": lambda y, t: F.binary_cross_entropy(y.sigmoid(), F.one_hot(t, 4).double()),
    "binary cross entropy of logits": lambda y, t: F.binary_cross_entropy_with_logits(y, F.one_hot(t, 4).double()),
    "two losses": lambda y, t: F.cross_entropy(y, t) + 0.4 * F.mse_loss(y, F.one_hot(t, 4).double()),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_gradients_of_this_loss_accumulate(loss: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 4)).double()
    plain, args = copy.deepcopy(model), (rows(BATCH).double(), torch.arange(BATCH) % 4)
    virtual = in_form(monkeypatch, "batch in 2 chunks", lambda x, t: LOSSES[loss](model(x), t), args)
    expected = train(lambda x, t: LOSSES[loss](plain(x), t), plain, args, steps=2)
    assert_close(expected, train(virtual, model, args, steps=2))


def names_of_forms(model: nn.Module, x: Tensor) -> set[str]:
    return set(graphs_of_forms(lambda x: model(x).square().mean(), (x,)))


def test_gradients_do_not_accumulate_through_batch_statistics() -> None:
    names = names_of_forms(ConvNet(), images())
    assert "all steps in 2 chunks" in names
    assert not any(name.startswith("batch in") for name in names)


def test_there_are_no_more_chunks_than_samples() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    assert {name.split(" in ")[1] for name in names_of_forms(model, rows(3)) if " in " in name} == {"2 chunks"}


def test_a_single_sample_is_not_cut() -> None:
    assert names_of_forms(nn.Linear(4, 4), rows(1)) == {"traced"}


def test_some_form_of_a_small_network_needs_at_most_half_of_what_the_traced_one_needs() -> None:
    found = graphs_of_forms(small_step(Small().double()), small_sample(64))
    least = {form: least_nbytes(graph) for form, graph in found.items()}
    assert 2 * min(least.values()) <= least["traced"], least
    assert least["convolution backwards split"] < least["traced"]


def sizes_of(name: str, image_size: int, batch: int) -> dict[str, int]:
    """The least that offloading needs for every form of a network at its full size."""
    with torch.device("meta"):
        work = MODELS[name].at_image_size(image_size).workload(batch)
    return {form: least_nbytes(graph) for form, graph in graphs_of_forms(work.step, work.args).items()}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "image_size", "batch"), [("vgg16", 224, 64), ("unet", 220, 8)])
def test_some_form_needs_at_most_half_of_what_the_traced_one_needs(name: str, image_size: int, batch: int) -> None:
    least: dict[str, Any] = sizes_of(name, image_size, batch)
    assert 2 * min(least.values()) <= least["traced"], least
    assert least["convolution backwards split"] < least["traced"]


class Changed(torch.autograd.Function):
    """Identity, with a backward of one's own."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, backward: Callable[[Tensor], Tensor]) -> torch.Tensor:
        ctx.backward_of = backward
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return ctx.backward_of(grad), None


LINEAR = {
    "scaled": lambda g: 2 * g,
    "halved": lambda g: g / 2,
    "cut apart and joined": lambda g: torch.cat(g.split(3, dim=-1), -1),
    "masked": lambda g: torch.where(torch.arange(8, device=g.device) > 3, g, 0.0),
    "masked the other way": lambda g: g.masked_fill(torch.arange(8, device=g.device) > 3, 0.0),
    "padded": lambda g: F.pad(g[:, 1:], (1, 0)),
    "added up": lambda g: g + g.flip(1),
    "turned": lambda g: g @ torch.eye(8, dtype=g.dtype, device=g.device),
}
NOT_LINEAR = {
    "clipped": lambda g: g.clamp(-1e-4, 1e-4),
    "rounded": lambda g: torch.div(g, 0.01, rounding_mode="trunc") * 0.01,
    "squared": lambda g: g * g,
    "divided by itself": lambda g: g / g,
    "normed": lambda g: g / g.norm(),
    "shifted": lambda g: g + 1,
    "padded with ones": lambda g: F.pad(g[:, 1:], (1, 0), value=1.0),
    "replaced": torch.ones_like,
    "joined with ones": lambda g: torch.cat([g[:, :4], torch.ones_like(g[:, 4:])], 1),
    "multiplied with itself": lambda g: g + torch.addmm(g, g, g.t() @ g),
    "masked by itself": lambda g: torch.where(g > 0, g, 0.0),
    "turned into integers": lambda g: g.long().double(),
    "seen as integers": lambda g: (g.view(torch.int64) & -2).view(torch.float64),
}


def step_with_backward(backward: Callable[[Tensor], Tensor]) -> tuple[nn.Module, Callable[[Tensor], Tensor], Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)).double()

    def step(x: torch.Tensor) -> torch.Tensor:
        loss: Tensor = Changed.apply(model(x), backward).square().sum()
        return loss

    return model, step, torch.randn(6, 8).double()


@pytest.mark.parametrize("backward", NOT_LINEAR)
def test_a_backward_that_is_not_linear_is_not_run_before_its_gradient_is_known(backward: str) -> None:
    _, step, x = step_with_backward(NOT_LINEAR[backward])
    assert not [name for name in offered_names(step, (x,)) if name.startswith("batch")]


@pytest.mark.parametrize("backward", LINEAR)
def test_a_linear_backward_may_be_run_before_its_gradient_is_known(
    backward: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, step, x = step_with_backward(LINEAR[backward])
    virtual = in_form(monkeypatch, "batch in 2 chunks", step, (x,))
    expected, found = (torch.autograd.grad(1e-3 * run(x), [*model.parameters()]) for run in (step, virtual))
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(other, one, rtol=TOLERANCE, atol=1e-15)


def test_a_mean_that_keeps_its_dims_keeps_them_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = nn.Linear(8, 8).double(), torch.randn(6, 8).double()

    def step(x: Tensor) -> Tensor:
        return model(x).square().mean(dim=None, keepdim=True)

    virtual = in_form(monkeypatch, "all steps in 2 chunks", step, (x,))
    torch.testing.assert_close(virtual(x), step(x))


def test_labels_as_large_as_the_batch_are_taken_in_chunks() -> None:
    """One number per class and pixel, in integers of 8 bytes: more than the network's own maps."""
    model = nn.Conv2d(3, 21, 1)

    def step(x: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(model(x), F.one_hot(y, 21).permute(0, 3, 1, 2).float())

    found = graphs_of_forms(step, (torch.randn(8, 3, 16, 16), torch.randint(21, (8, 16, 16))))
    whole_nbytes = 8 * 16 * 16 * 21 * 8
    assert max(storage.nbytes for storage in found["traced"].storages) == whole_nbytes
    assert max(storage.nbytes for storage in found["batch in 4 chunks"].storages) < whole_nbytes / 2


def test_a_look_through_another_dtype_runs_whole() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh())

    def step(x: Tensor) -> Tensor:
        hidden = model(x)
        return (hidden * (hidden.detach().view(torch.int32) & 1).float()).square().sum()

    assert "all steps in 2 chunks" in graphs_of_forms(step, (torch.randn(6, 8),))


def test_a_form_does_not_depend_on_those_made_before_it() -> None:
    """With one sample `squeeze` takes away the batch: in 8 chunks it runs whole, in 2 it need not."""
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))

    def step(x: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(model(x).squeeze(), y)

    with joint_of(step, (torch.randn(8, 8), torch.randn(8))) as joint:
        offers = [
            {form.name: form for form in forms(joint, count_forward_outputs(joint.graph), exact=False)}
            for _ in range(2)
        ]
        offers[1]["all steps in 8 chunks"].make()
        alone, later = (offer["all steps in 2 chunks"].make() for offer in offers)
    assert [node.target for node in alone.graph.nodes] == [node.target for node in later.graph.nodes]


def test_noise_of_dropout_has_two_values_in_chunks_too() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.1), nn.Linear(64, 64))
    found = graphs_of_forms(lambda x: model(x).square().mean(), (torch.randn(8, 64),))
    alphabets = {form: [s.alphabet for s in graph.storages if len(s.alphabet) == 2] for form, graph in found.items()}
    assert all(alphabets.values()), alphabets


def test_a_step_in_half_precision_is_not_cut_into_chunks() -> None:
    model = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32)).half()

    def step(x: torch.Tensor) -> torch.Tensor:
        return model(x).square().mean()

    assert offered_names(step, (torch.randn(64, 32).half(),)) == []


def test_a_form_says_the_same_of_its_bits_as_a_plan_for_it() -> None:
    spec = MODELS["vgg16"].small()
    with joint_of(spec.step(spec.build()), spec.sample(BATCH)) as joint:
        offered = list(forms(joint, count_forward_outputs(joint.graph), exact=False))
    assert {form.exact for form in offered} == {True, False}
    assert [form.exact for form in offered] == [form.name in EXACT_FORMS for form in offered]
