"""`virtualize(plan=...)`: a plan made before is followed by every way a model can be captured, or refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vdnn
from vdnn.errors import ForeignPlan, InvalidInput
from vdnn.plan import Plan
from vdnn.units import Nbytes

pytestmark = pytest.mark.any_device

BATCH = 4


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VDNN_CACHE_DIR", str(tmp_path.parent / "vdnn-cache"))


def make_model(channels: int = 8) -> nn.Module:
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU())]
    return nn.Sequential(nn.Conv2d(3, channels, 3), nn.BatchNorm2d(channels), nn.Dropout(0.2), *layers)


def step_of(model: nn.Module) -> Callable[[Tensor], Tensor]:
    def step(images: Tensor) -> Tensor:
        return model(images).square().mean()

    return step


def images(batch: int = BATCH) -> Tensor:
    torch.manual_seed(1)
    return torch.randn(batch, 3, 18, 18)


def saved(strategy: str = "recompute-memory", **asked: Any) -> Plan:
    return vdnn.plan(step_of(make_model()), (images(),), hardware="titan-x", strategy=strategy, **asked)


def gradients(model: nn.Module, step: Callable[[Tensor], Tensor]) -> list[Tensor]:
    torch.manual_seed(2)
    step(images()).backward()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def just_in_time(model: nn.Module, plan: Plan | str) -> Callable[[Tensor], Tensor]:
    return vdnn.virtualize(step_of(model), hardware="titan-x", plan=plan)


def ahead_of_time(model: nn.Module, plan: Plan | str) -> Callable[[Tensor], Tensor]:
    return vdnn.virtualize(step_of(model), (images(),), hardware="titan-x", plan=plan)


def by_torch_compile(model: nn.Module, plan: Plan | str) -> Callable[[Tensor], Tensor]:
    from vdnn.compile.backend import vdnn as backend

    return torch.compile(step_of(model), backend=backend, options={"plan": plan, "hardware": "titan-x"}, dynamic=False)


@pytest.mark.parametrize("way", [just_in_time, ahead_of_time, by_torch_compile])
def test_a_saved_plan_is_followed_with_the_same_gradients(
    way: Callable[[nn.Module, Plan | str], Callable[[Tensor], Tensor]], tmp_path: Path
) -> None:
    path = str(saved().save(tmp_path / "plan.json"))
    plain, virtual = make_model(), make_model()
    expected, found = gradients(plain, step_of(plain)), gradients(virtual, way(virtual, path))
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(found, expected, strict=True))


def test_the_step_has_the_peak_that_was_planned() -> None:
    plan, model = saved(), make_model()
    virtual = just_in_time(model, plan)
    gradients(model, virtual)
    report = vdnn.report(virtual)
    assert report.strategy == "recompute-memory"
    assert report.predicted.peak_nbytes == plan.peak_nbytes
    assert report.measured is not None
    assert report.measured.peak_nbytes <= plan.peak_nbytes


def test_a_plan_that_counts_an_optimizer_is_followed_by_a_model_without_one() -> None:
    plan, model = saved(optimizer="adam"), make_model()
    virtual = just_in_time(model, plan)
    gradients(model, virtual)
    assert vdnn.report(virtual).predicted.peak_nbytes < plan.peak_nbytes


def test_a_budget_of_the_plan_is_kept_on_this_machine(tmp_path: Path) -> None:
    """Planned with the ops measured, so that workspaces are in it, and followed by another capture of the model."""
    model = make_model()
    plan = vdnn.plan(step_of(model), (images(),), budget="80%", strategy="offload", costs="measured")
    virtual = vdnn.virtualize(step_of(model), plan=plan.save(tmp_path / "plan.json"))
    gradients(model, virtual)
    report = vdnn.report(virtual)
    assert report.budget_nbytes == plan.problem.budget_nbytes
    assert report.measured is not None
    assert report.measured.peak_nbytes <= (plan.problem.budget_nbytes or 0)


def test_a_batch_of_another_size_is_refused_with_both_shapes() -> None:
    virtual = just_in_time(make_model(), saved())
    with pytest.raises(ForeignPlan, match=r"is 4x3x18x18 float32 in the plan and 2x3x18x18 float32 here"):
        virtual(images(2))


def test_another_model_is_refused_ahead_of_its_first_step() -> None:
    with pytest.raises(ForeignPlan, match=r"in the plan and 12x3x3x3 float32 here"):
        ahead_of_time(make_model(channels=12), saved())


@pytest.mark.parametrize("given", [{"strategy": "gist"}, {"lossy": "fp16"}])
def test_a_plan_beside_what_it_says_itself_is_a_mistake(given: dict[str, str]) -> None:
    with pytest.raises(InvalidInput, match="a saved plan has its own"):
        vdnn.virtualize(make_model(), plan=saved(), **given)  # type: ignore[arg-type]


def test_a_plan_for_another_form_of_the_step_is_followed_in_that_form(tmp_path: Path) -> None:
    """Half of keep-all's peak is less than the largest op of this network needs whole."""
    workload = vdnn.models.load("vgg16", 64, small=True, image_size=64)
    plan = vdnn.plan(workload.step, workload.args, hardware="titan-x", budget="52%")
    assert plan.problem.form, "the budget was chosen so that the traced step does not fit"
    virtual = vdnn.virtualize(workload.step, hardware="titan-x", plan=plan.save(tmp_path / "plan.json"))
    virtual(*workload.args).backward()
    report = vdnn.report(virtual)
    assert report.measured is not None
    assert report.measured.peak_nbytes <= plan.peak_nbytes


def test_a_plan_that_changes_bits_is_followed_only_where_that_is_allowed() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(32, 32), nn.Tanh())))
    step, rows = step_of(model), torch.randn(64, 32)
    kept = vdnn.plan(step, (rows,), hardware="titan-x", strategy="keep-all")
    plan = vdnn.plan(step, (rows,), hardware="titan-x", budget=Nbytes(0.72 * kept.peak_nbytes), exact=False)
    assert plan.problem.form.endswith("chunks")
    with pytest.raises(ForeignPlan, match="Pass exact=False, or plan again"):
        vdnn.virtualize(step, hardware="titan-x", plan=plan)(rows)
    vdnn.virtualize(step, hardware="titan-x", plan=plan, exact=False)(rows).backward()
