"""`vdnn fit` and `vdnn.fit`: the largest size that fits, found by doubling and bisection without allocating."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import vdnn
from cpu.command_line import DEEP, ON_TITAN_X, answer, place_nets, refusal, text
from vdnn.cli import main
from vdnn.compile import fitting
from vdnn.compile.fitting import Probe, largest_fitting
from vdnn.errors import Infeasible, InvalidInput

FIT = ("fit", DEEP, *ON_TITAN_X)
SMALL = ("--budget", "256KiB")
"""Few samples fit, so the search is over soon."""


@pytest.fixture(autouse=True)
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place_nets(tmp_path, monkeypatch)


def pretended(largest: int) -> Any:
    """A probe of a problem whose answer is known."""

    def probe(size: int) -> Probe:
        return Probe(size, True, 0.0, size) if size <= largest else Probe(size, False, 0.0, minimum_nbytes=size)

    return probe


@pytest.mark.parametrize("answer_", [1, 2, 3, 7, 8, 9, 100, 1023])
def test_the_largest_size_is_found_whatever_it_is(answer_: int) -> None:
    assert largest_fitting(pretended(answer_)).size == answer_


def test_a_search_may_begin_at_nothing() -> None:
    assert largest_fitting(pretended(5), smallest=0).size == 5


def test_a_search_ends_at_its_limit() -> None:
    tried: list[int] = []
    assert largest_fitting(pretended(10**9), largest=100, on_probe=lambda probe: tried.append(probe.size)).size == 100
    assert tried == [1, 2, 4, 8, 16, 32, 64, 100]


def test_no_size_is_tried_twice() -> None:
    tried: list[int] = []
    largest_fitting(pretended(700), on_probe=lambda probe: tried.append(probe.size))
    assert len(tried) == len(set(tried))


def test_where_the_smallest_does_not_fit_the_bytes_it_needs_are_named() -> None:
    with pytest.raises(Infeasible, match=r"the smallest size, 3, does not fit") as caught:
        largest_fitting(pretended(2), smallest=3)
    assert caught.value.minimum_nbytes == 3


def make_model() -> nn.Module:
    return nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(64, 64), nn.ReLU())))


def make_args(batch: int) -> tuple[torch.Tensor, ...]:
    return (torch.empty(batch, 64),)


def test_the_batch_that_is_returned_fits_and_the_next_does_not() -> None:
    batch = vdnn.fit(make_model, make_args, budget="1MiB", hardware="titan-x", strategy="keep-all", smallest=256)
    with torch.device("meta"):
        model, args, more = make_model(), make_args(batch), make_args(batch + 1)
    assert vdnn.plan(model, args, budget="1MiB", hardware="titan-x", strategy="keep-all").peak_nbytes <= 2**20
    with pytest.raises(Infeasible):
        vdnn.plan(model, more, budget="1MiB", hardware="titan-x", strategy="keep-all")


@pytest.mark.slow
def test_moving_maps_lets_a_larger_batch_fit() -> None:
    kept, moved = (
        vdnn.fit(make_model, make_args, budget="1MiB", hardware="titan-x", strategy=strategy, smallest=256)
        for strategy in ("keep-all", "offload")
    )
    assert moved > kept


def test_the_model_and_its_arguments_are_made_without_memory() -> None:
    seen: list[torch.Tensor] = []

    def watched(batch: int) -> tuple[torch.Tensor, ...]:
        seen.extend(make_args(batch))
        return tuple(seen[-1:])

    vdnn.fit(make_model, watched, budget="1MiB", hardware="titan-x", largest=2)
    assert {tensor.device.type for tensor in seen} == {"meta"}


def test_without_a_budget_the_memory_of_the_device_is_the_budget() -> None:
    options = fitting.fitting_options(budget=None, hardware="titan-x")
    assert options.budget == options.machine.device.nbytes


def test_a_share_is_no_budget_for_a_search() -> None:
    with pytest.raises(InvalidInput, match="grows with the batch"):
        vdnn.fit(make_model, make_args, budget="50%", hardware="titan-x")


def test_the_json_keeps_its_shape(capsys: pytest.CaptureFixture[str]) -> None:
    record = answer(capsys, *FIT, *SMALL)
    assert (record["schema"], record["version"]) == ("vdnn.fit", 1)
    assert set(record) == {
        "schema",
        "version",
        "model",
        "varied",
        "batch",
        "hardware",
        "budget_nbytes",
        "largest",
        "name",
        "is_final",
        "probes",
    }
    assert record["largest"] == record["batch"] == max(probe["size"] for probe in record["probes"] if probe["fits"])
    assert record["is_final"]


def test_probes_are_told_as_they_come(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*FIT, *SMALL]) == 0
    out, err = capsys.readouterr()
    assert err.splitlines()[0].startswith("batch 1 ")
    assert "does not fit: needs" in err
    assert "The largest that fits: batch" in out


def test_the_answer_fits_the_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    shown = text(capsys, monkeypatch, 80, *FIT, "--budget", "1MiB", "--most", "4")
    assert max(len(line.rstrip()) for line in shown.splitlines()) <= 80


def test_a_search_that_was_cut_short_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    record = answer(capsys, *FIT, "--budget", "1GiB", "--most", "4")
    assert (record["largest"], record["is_final"]) == (4, False)


def test_a_budget_that_one_sample_exceeds_names_one_that_it_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*FIT, "--budget", "10KiB"]) == 2
    assert "the smallest size, 1, does not fit" in capsys.readouterr().err


def interrupt_after(monkeypatch: pytest.MonkeyPatch, num_probes: int) -> None:
    planned, left = fitting.planned, [num_probes]

    def stops(*args: Any) -> Probe:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return planned(*args)

    monkeypatch.setattr(fitting, "planned", stops)


def test_an_interrupt_leaves_what_is_known_by_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_after(monkeypatch, 3)
    assert main([*FIT, "--budget", "1GiB"]) == 130
    assert "Interrupted after 3 probes: batch 4 fits, and perhaps more." in capsys.readouterr().out


def test_an_interrupt_leaves_what_is_known_in_json_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_after(monkeypatch, 3)
    assert main([*FIT, "--budget", "1GiB", "--json"]) == 130
    record = json.loads(capsys.readouterr().out)
    assert (record["largest"], record["is_final"]) == (4, False)


def test_an_interrupt_before_anything_is_known_is_an_interrupt(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_after(monkeypatch, 0)
    assert main([*FIT, "--budget", "1GiB"]) == 130
    assert capsys.readouterr().err.strip() == "error: interrupted"


def test_the_deepest_vgg_grows_in_every_group(capsys: pytest.CaptureFixture[str]) -> None:
    record = answer(capsys, "fit", "vgg16", "--depth", "--batch", "1", "--image-size", "32", "--most", "1", *ON_TITAN_X)
    assert (record["largest"], record["name"], record["batch"]) == (1, "vgg21, 21 layers", 1)


@pytest.mark.slow
def test_the_deepest_resnet_grows_in_its_third_stage(capsys: pytest.CaptureFixture[str]) -> None:
    record = answer(
        capsys, "fit", "resnet-1-1-9-1", "--depth", "--batch", "1", "--image-size", "64", "--most", "2", *ON_TITAN_X
    )
    assert (record["largest"], record["name"]) == (2, "resnet-1-1-2-1, 17 layers")


def test_a_network_without_a_depth_says_which_have_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert "has no depth to vary: resnet50" in refusal(capsys, "fit", "alexnet", "--depth", *ON_TITAN_X)


def test_a_batch_without_depth_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--batch goes with --depth" in refusal(capsys, *FIT, "--batch", "4")
