"""The product in twenty short tests, in under a minute: only what a user can name, on a network of a few kilobytes.

Every release of torch that vdnn supports passes this file. Most plan for a named device, so that none measures the
machine it runs on.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vdnn
from vdnn.cli import main
from vdnn.errors import CaptureFailed, ForeignPlan, Infeasible, InvalidInput, Unsupported
from where import rng_state, seeded

pytestmark = [
    pytest.mark.any_device,
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]

DEVICE = "titan-x"
MODULE = """
import test_tiny

def net(batch):
    return test_tiny.network(), test_tiny.images(batch), lambda output: output.square().mean()
"""


def network() -> nn.Module:
    """Convolutions, statistics, masks, writes in place, random numbers."""
    torch.manual_seed(0)
    stem = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True)]
    body = [layer for _ in range(3) for layer in (nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Dropout(0.1))]
    return nn.Sequential(*stem, *body, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 8 * 8, 4))


def images(batch: int = 4) -> Tensor:
    return torch.randn(batch, 3, 16, 16, generator=seeded(1))


def step(model: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    torch.manual_seed(2)
    loss = model(x).square().mean()
    loss.backward()
    return loss.detach()


def left_behind(model: nn.Module, run: Callable[[Tensor], Tensor] | None = None) -> list[Tensor]:
    """Loss, gradients, buffers and the generator after two steps of training."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    kept = []
    for _ in range(2):
        optimizer.zero_grad()
        kept.append(step(run or model, images()))
        kept += [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
        optimizer.step()
    return [*kept, *model.state_dict().values(), rng_state()]


def assert_same_bits(virtual: nn.Module, run: Callable[[Tensor], Tensor] | None = None) -> None:
    pairs = list(zip(left_behind(virtual, run), left_behind(network()), strict=True))
    assert len(pairs) > 20
    assert all(torch.equal(found, expected) for found, expected in pairs)


def virtualize(**asked: Any) -> nn.Module:
    return vdnn.virtualize(network(), **{"hardware": DEVICE, **asked})


def plan(**asked: Any) -> vdnn.plan.Plan:
    return vdnn.plan(network(), (images(),), hardware=DEVICE, **asked)


@pytest.fixture
def my_nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A user's own network, for the command line."""
    (tmp_path / "tiny_nets.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "tiny_nets:net"


def test_one_changed_line_trains_with_the_same_bits() -> None:
    assert_same_bits(virtualize())


def test_with_a_sample_the_step_is_captured_before_it_runs() -> None:
    virtual = virtualize(sample=(images(),))
    assert vdnn.report(virtual).predicted.peak_nbytes > 0
    assert_same_bits(virtual)


def test_a_budget_is_kept_with_the_same_bits() -> None:
    virtual = virtualize(budget="75%")
    assert_same_bits(virtual)
    report = vdnn.report(virtual)
    assert report.measured is not None
    assert report.budget_nbytes is not None
    assert report.measured.peak_nbytes <= report.predicted.peak_nbytes <= report.budget_nbytes < plan().peak_nbytes


@pytest.mark.parametrize("strategy", ["keep-all", "offload", "vdnn-all", "superneurons", "recompute-cost", "gist"])
def test_every_family_of_strategies_trains_with_the_same_bits(strategy: str) -> None:
    assert_same_bits(virtualize(strategy=strategy, sample=(images(),)))


def test_a_lossy_step_says_how_far_its_gradients_are_from_the_exact_ones() -> None:
    virtual = virtualize(lossy="fp8", strategy="gist", sample=(images(),))
    step(virtual, images())
    error = vdnn.report(virtual).pieces[0].gradient_error
    assert error is not None
    assert 0 < error.relative < 0.5


def test_sums_in_another_order_fit_a_smaller_budget_and_are_named() -> None:
    first, second = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)

    def loss(x: Tensor) -> Tensor:
        return second(first(x).relu()).relu().square().mean()

    def gradients(run: Callable[[Tensor], Tensor]) -> tuple[Tensor, ...]:
        return torch.autograd.grad(run(images(16)), [*first.parameters(), *second.parameters()])

    with pytest.raises(Infeasible, match="exact=False") as refusal:
        vdnn.plan(loss, (images(16),), budget="1KiB", hardware=DEVICE)
    asked: dict[str, Any] = {"budget": f"{refusal.value.minimum_nbytes * 3 // 5}B", "hardware": DEVICE, "exact": False}
    inexact = vdnn.virtualize(loss, (images(16),), **asked)
    for found, expected in zip(gradients(inexact), gradients(loss), strict=True):
        torch.testing.assert_close(found, expected)
    assert vdnn.report(inexact).pieces[0].inexact


def test_a_budget_that_is_too_small_is_refused_with_one_that_works() -> None:
    with pytest.raises(Infeasible, match="no 'auto' plan fits") as refusal:
        virtualize(budget="1KiB", sample=(images(),))
    assert_same_bits(virtualize(budget=refusal.value.minimum_nbytes, sample=(images(),)))


def test_mistakes_are_refused_with_the_way_out() -> None:
    with pytest.raises(InvalidInput, match=r"no strategy 'magic'\. Choose one of: auto"):
        virtualize(strategy="magic", sample=(images(),))
    with pytest.raises(ValueError, match=r"cannot read 'much' .* as in '12GiB'"):
        virtualize(budget="much")
    with pytest.raises(Unsupported, match="drop create_graph=True"):
        virtualize(sample=(images(),))(images()).sum().backward(create_graph=True)


def test_python_that_looks_at_values_is_captured_in_pieces_or_named() -> None:
    def looks(x: Tensor) -> Tensor:
        x = x.relu() * 2
        return x.exp() if x.sum().item() > 0 else x

    x = images().requires_grad_()
    virtual = vdnn.virtualize(looks, hardware=DEVICE)
    assert torch.equal(virtual(x), looks(x))
    with pytest.raises(CaptureFailed, match="is not one graph"):
        vdnn.virtualize(looks, hardware=DEVICE, fullgraph=True)(x)


def test_a_report_sets_what_was_measured_beside_what_was_predicted() -> None:
    virtual = virtualize(strategy="keep-all", sample=(images(),))
    step(virtual, images())
    report = vdnn.report(virtual)
    assert report.measured is not None
    assert report.measured.peak_nbytes == pytest.approx(report.predicted.peak_nbytes, rel=0.01)
    assert "keep-all" in str(report)
    assert json.loads(report.to_json())["totals"]["measured"]["peak_nbytes"] == report.measured.peak_nbytes


def test_a_step_is_planned_without_allocating_it() -> None:
    with torch.device("meta"):
        model, x = nn.Linear(10**6, 10**5), torch.empty(64, 10**6)
    assert vdnn.plan(model, (x,), hardware=DEVICE).peak_nbytes > 400e9


def test_a_saved_plan_is_followed_and_one_of_another_model_is_refused(tmp_path: Path) -> None:
    path = plan(strategy="recompute-memory").save(tmp_path / "plan.json")
    assert_same_bits(virtualize(plan=path))
    with pytest.raises(ForeignPlan, match="is of another graph than Linear"):
        vdnn.virtualize(nn.Linear(4, 4), (torch.randn(2, 4),), hardware=DEVICE, plan=path)


def test_the_largest_batch_within_a_budget_is_found() -> None:
    asked: dict[str, Any] = {"budget": "64KiB", "hardware": DEVICE, "strategy": "keep-all", "largest": 64}
    batch = vdnn.fit(lambda: nn.Linear(64, 64), lambda size: (torch.empty(size, 64),), **asked)
    model = nn.Linear(64, 64)
    inside, outside = (
        vdnn.plan(model, (torch.empty(rows, 64),), hardware=DEVICE).peak_nbytes for rows in (batch, batch + 1)
    )
    assert inside <= 64 * 2**10 < outside


def test_an_eager_model_keeps_a_budget_in_a_tensor_cache() -> None:
    cache = vdnn.tensor_cache("1GiB", hardware=DEVICE)

    def run(x: Tensor) -> Tensor:
        return model(x)

    model = network()
    with cache:
        assert_same_bits(model, run)
    assert "1.00 GiB" in cache.report()


def test_torch_compile_takes_vdnn_as_its_backend() -> None:
    from vdnn.compile.backend import vdnn as backend

    model = network()
    asked = {"strategy": "recompute-cost", "hardware": DEVICE}
    assert_same_bits(model, torch.compile(model, backend=backend, dynamic=False, options=asked))


def test_without_gradients_the_plain_model_runs() -> None:
    plain, virtual = network().eval(), virtualize().eval()
    with torch.no_grad():
        assert torch.equal(virtual(images()), plain(images()))
    with pytest.raises(InvalidInput, match="has run a training step yet"):
        vdnn.report(virtual)


def test_a_virtual_model_has_the_keys_the_parameters_and_the_class_of_the_plain_one() -> None:
    plain = network()
    virtual = vdnn.virtualize(plain, hardware=DEVICE)
    assert type(virtual) is type(plain)
    assert list(virtual.state_dict()) == list(plain.state_dict())
    assert all(mine is theirs for mine, theirs in zip(virtual.parameters(), plain.parameters(), strict=True))
    assert copy.deepcopy(virtual)(images()).shape == (4, 4)


def test_dropout_made_again_draws_the_same_numbers() -> None:
    def drop(x: Tensor) -> Tensor:
        return nn.functional.dropout(nn.functional.dropout(x.exp(), 0.3).exp(), 0.5).square().sum()

    x = images().requires_grad_()
    again = vdnn.virtualize(drop, (x,), hardware=DEVICE, strategy="recompute-memory")
    torch.manual_seed(3)
    (expected,) = torch.autograd.grad(drop(x), x)
    torch.manual_seed(3)
    (found,) = torch.autograd.grad(again(x), x)
    assert torch.equal(found, expected)


def test_the_command_line_plans_a_network_of_the_users(my_nets: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", my_nets, "--batch", "4", "--budget", "80%", "--hardware", DEVICE, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["plan"]["peak_nbytes"] <= answer["budget_nbytes"] < answer["keep_all"]["peak_nbytes"]


def test_the_command_line_trains_and_compares_every_bit(my_nets: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--batch", "4", "--steps", "2", "--strategy", "recompute-memory", "--verify", "--json"]
    assert main(["train", my_nets, *asked]) == 0
    verdict = json.loads(capsys.readouterr().out)["verified"]
    assert verdict["equal"]
    assert verdict["num_compared"] > 20
