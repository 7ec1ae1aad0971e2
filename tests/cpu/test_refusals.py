"""What vdnn cannot do exactly, and what makes no sense: one clear error with the way out, never a silent difference."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from equivalence import check, executors, plan, virtualize
from nets import EITHER_FRONT_END, ConvNet, LooksAtValues, Using, backward, backward_of_each, images, options, rows
from torch import Tensor, nn

import vdnn
from vdnn.errors import CaptureFailed, InvalidInput, Unsupported
from where import here

pytestmark = pytest.mark.any_device


def product() -> nn.Module:
    return Using(lambda self, x: self.linear(x).prod(1), linear=nn.Linear(4, 4))


@EITHER_FRONT_END
def test_double_backward_is_refused_where_it_is_asked_for(front_end: str) -> None:
    batch = rows().requires_grad_()
    virtual = virtualize(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), **options(front_end, batch))
    output = virtual(batch).sum()
    with pytest.raises(Unsupported, match=r"create_graph=True.*Call the plain model"):
        torch.autograd.grad(output, batch, create_graph=True)


@pytest.mark.parametrize("kind", ["missing", "a file", "/proc"])
@pytest.mark.parametrize("begin", [vdnn.virtualize, lambda _, **how: vdnn.tensor_cache(**how)], ids=["model", "cache"])
def test_a_spill_dir_without_files_of_ours_is_refused_by_its_name(
    begin: Callable[..., Any], kind: str, tmp_path: Path
) -> None:
    folder = Path("/proc") if kind == "/proc" else tmp_path / "folder"
    if kind == "a file":
        folder.write_text("")
    words = "no file can be made" if kind == "/proc" else "it is not a directory"
    with pytest.raises(InvalidInput, match=rf"spill_dir='{folder}'.*{words}.*Name a folder.*VDNN_DISK_DIR"):
        begin(ConvNet(), budget="16MiB", spill_dir=str(folder))


def test_fullgraph_refuses_a_break_with_its_file_and_line() -> None:
    virtual = virtualize(LooksAtValues(), fullgraph=True)
    with pytest.raises(
        CaptureFailed, match=r"LooksAtValues is not one graph: .*nets\.py, line \d+.*\n.*drop fullgraph"
    ):
        virtual(images())


@pytest.mark.parametrize("asked", [{"strategy": "magic"}, {"optimizer": "lion"}, {"lossy": "fp3"}], ids=str)
def test_a_name_that_does_not_exist_is_refused_before_anything_is_captured(asked: Any) -> None:
    (name,) = asked.values()
    for capture in (vdnn.virtualize, lambda model, **asked: vdnn.plan(model, (images(),), **asked)):
        with pytest.raises(InvalidInput, match=f"{name}"):
            capture(LooksAtValues(), **asked)


def test_an_option_that_a_function_does_not_take_is_refused_with_those_it_does() -> None:
    for call in (
        lambda: vdnn.virtualize(ConvNet(), budgets="1GiB"),  # type: ignore[call-arg]
        lambda: vdnn.plan(ConvNet(), (images(),), compiler="inductor"),  # type: ignore[call-arg]
        lambda: vdnn.fit(ConvNet, images, spill_dir="/tmp"),  # type: ignore[call-arg]
        lambda: vdnn.tensor_cache("1GiB", strategy="auto"),  # type: ignore[call-arg]
    ):
        with pytest.raises(TypeError, match=r"got an unexpected keyword argument '\w+'\. Its options: .*budget"):
            call()


def test_a_step_that_looks_at_values_has_no_single_graph_ahead_of_time() -> None:
    with pytest.raises(CaptureFailed, match=r"could not capture LooksAtValues(?s:.*)without a sample"):
        virtualize(LooksAtValues(), sample=(images(),))


def test_prod_runs_plain_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="vdnn"):
        check(product(), lambda virtual: backward(virtual, rows()))
    assert any("runs plain, outside any plan" in message for message in caplog.messages)


def test_prod_is_refused_ahead_of_time_by_who_is_strict() -> None:
    with pytest.raises(Unsupported, match=r"prod.*cannot be captured bit for bit.*chain of multiplications"):
        virtualize(product(), sample=(rows(),), exact="strict")


@pytest.mark.cpu_only("the device for tests has no sparse tensors")
def test_sparse_gradients_run_plain_and_are_the_same() -> None:
    words = torch.tensor([[1, 2], [2, 0]])
    check(nn.Embedding(10, 4, sparse=True), lambda virtual: backward_of_each(virtual(words)))


@pytest.mark.parametrize("capture", [lambda model, words: virtualize(model, sample=(words,)), plan])
def test_sparse_gradients_are_refused_ahead_of_time(capture: Any) -> None:
    with pytest.raises(Unsupported, match=r"sparse tensor.*sparse=False"):
        capture(nn.Embedding(10, 4, sparse=True), torch.tensor([[1, 2], [2, 0]]))


def test_a_backward_hook_on_a_module_is_refused_ahead_of_time() -> None:
    model = ConvNet()
    model.linear.register_full_backward_hook(lambda *_: None)
    with pytest.raises(Unsupported, match=r"linear has a backward hook.*without a sample"):
        virtualize(model, sample=(images(),))


def test_a_backward_hook_that_comes_later_is_refused_ahead_of_time() -> None:
    virtual = virtualize(ConvNet(), sample=(images(),))
    backward(virtual, images())
    virtual.linear.register_full_backward_hook(lambda *_: None)
    with pytest.raises(Unsupported, match="linear has a backward hook"):
        virtual(images())


def test_a_function_whose_parameters_cannot_be_found_is_refused_ahead_of_time() -> None:
    weight = torch.ones(4, 4, requires_grad=True)
    with pytest.raises(CaptureFailed, match="tensors outside its modules and"):
        virtualize(lambda batch: (batch @ weight).sum(), sample=(rows(),))


def test_an_argument_that_is_written_and_passed_twice_is_refused_ahead_of_time() -> None:
    model = Using(lambda self, x, y: (x.add_(1), self.linear(y))[1], linear=nn.Linear(4, 4))
    virtual = virtualize(model, sample=(rows(), rows()))
    batch = rows()
    with pytest.raises(CaptureFailed):
        virtual(batch, batch)


@pytest.mark.parametrize("thing", [3, "model", None, torch.ones(2)], ids=repr)
@pytest.mark.parametrize("take", [virtualize, lambda thing: plan(thing, rows())], ids=["virtualize", "plan"])
def test_only_modules_and_functions_can_be_virtualized(take: Any, thing: Any) -> None:
    with pytest.raises(InvalidInput, match=r"takes an nn\.Module or a function, not"):
        take(thing)


SAMPLES = {
    "no tensor": ((3,), "the sample holds no tensor, only int 3"),
    "nothing": ((), "the sample holds no tensor, only nothing"),
    "a string": ("image", "must be a tensor or a tuple of arguments, not str 'image'"),
    "a numpy array": ((rows().cpu().numpy(),), r"numpy array of shape \(3, 4\).*from_numpy"),
}


@pytest.mark.parametrize(("sample", "words"), SAMPLES.values(), ids=SAMPLES.keys())
@pytest.mark.parametrize("take", [virtualize, plan], ids=["virtualize", "plan"])
def test_a_sample_that_is_none_is_refused(take: Any, sample: Any, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        take(nn.Linear(4, 4), sample)


BAD_OPTIONS = {
    "budget": ({"budget": "12 GiBs"}, "12 GiBs"),
    "strategy": ({"strategy": "keep-some"}, "keep-some"),
    "device": ({"hardware": "titan-y"}, "titan-y"),
}


@pytest.mark.parametrize(("bad", "words"), BAD_OPTIONS.values(), ids=BAD_OPTIONS.keys())
def test_a_bad_option_is_named(bad: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        backward(vdnn.virtualize(nn.Linear(4, 4), **{"hardware": "titan-x", **bad}), rows())


def test_a_report_before_any_step_says_what_to_do() -> None:
    with pytest.raises(InvalidInput, match="has run a training step yet: call it and its backward once"):
        vdnn.report(virtualize(nn.Linear(4, 4)))


@pytest.mark.parametrize("thing", [nn.Linear(4, 4), len, 3], ids=["module", "function", "number"])
def test_a_report_of_something_plain_is_refused(thing: Any) -> None:
    with pytest.raises(InvalidInput, match=r"is not virtualized: pass the object that vdnn\.virtualize returned"):
        vdnn.report(thing)


@EITHER_FRONT_END
def test_a_model_in_which_nothing_requires_a_gradient_just_runs(front_end: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.BatchNorm1d(4)).requires_grad_(False)

    def run(virtual: Any) -> Tensor:
        return virtual(rows())

    expected, found = check(model, run, **options(front_end, rows()))
    assert torch.equal(expected, found)
    assert not found.requires_grad


def test_a_model_in_which_nothing_requires_a_gradient_has_nothing_to_report() -> None:
    virtual = virtualize(nn.Linear(4, 4).requires_grad_(False), sample=(rows(),))
    virtual(rows())
    assert executors(virtual) == []


@EITHER_FRONT_END
def test_backward_inside_autocast_is_refused_and_behind_it_has_the_bits_of_plain_pytorch(front_end: str) -> None:
    """Plain PyTorch computes a backward in the types of the autocast in which it is called."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    x = torch.randn(6, 8)
    with torch.autocast(here().type, torch.bfloat16):
        virtual = virtualize(model, **options(front_end, x))
        loss = virtual(x).float().square().mean()
        with pytest.raises(Unsupported, match=r"Move loss\.backward\(\) behind the autocast block"):
            loss.backward()
        loss = virtual(x).float().square().mean()
    loss.backward()
    found = [parameter.grad for parameter in model.parameters()]
    model.zero_grad(set_to_none=True)
    with torch.autocast(here().type, torch.bfloat16):
        loss = model(x).float().square().mean()
    loss.backward()
    for parameter, gradient in zip(model.parameters(), found, strict=True):
        assert gradient is not None
        assert torch.equal(parameter.grad, gradient)
