"""The command line: every mistake gets one clear line and an exit code, every answer is JSON when asked.

Most tests call `main` in this process; a few start a real one, because that is what a user does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from vdnn.cli import arguments, main
from vdnn.options import described

NETS = '''
import torch
from torch import nn

def good(batch):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2), nn.BatchNorm1d(2))
    return model, torch.randn(batch, 4), lambda output: output.square().mean()

def convolutions(batch):
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU()]
    tail = [nn.Conv2d(32, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4)]
    return nn.Sequential(*layers, *tail), torch.randn(batch, 3, 32, 32)

def chatty(batch):
    print("hello from a factory")
    return good(batch)

def raises(batch):
    raise OSError("no weights here")

def no_tensor(batch):
    return nn.Linear(4, 2), ("four",)

def interrupted(batch):
    raise KeyboardInterrupt

class Fickle(nn.Module):
    """Counts its own calls, so that two of them never agree: stands for a model that is not a function of its input."""

    calls = 0

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x):
        Fickle.calls += 1
        return (self.weight * x).sum() * Fickle.calls

def fickle(batch):
    return Fickle(), torch.ones(batch, 4)

class Buggy(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return self.bias * x

def buggy(batch):
    return Buggy(), torch.ones(batch, 4)
'''

MISTAKES = {
    "an unknown model": (["inspect", "vgg61", "--batch", "2"], "there is no model 'vgg61'. Close to it: vgg16"),
    "a factory that raises": (["inspect", "usernets:raises", "--batch", "2"], "OSError: no weights here"),
    "a module that does not exist": (["inspect", "no_such:factory", "--batch", "2"], "cannot import 'no_such'"),
    "a factory that does not exist": (
        ["inspect", "usernets:missing", "--batch", "2"],
        "module 'usernets' has no 'missing'",
    ),
    "a sample that is no tensor": (["inspect", "usernets:no_tensor", "--batch", "2"], "not a tensor"),
    "a batch of zero": (["inspect", "vgg16", "--batch", "0"], "'0' is not a positive whole number"),
    "a batch below zero": (["train", "vgg16", "--batch", "-3"], "'-3' is not a positive whole number"),
    "a batch in words": (["inspect", "vgg16", "--batch", "many"], "'many' is not a whole number"),
    "half a sample": (["train", "vgg16", "--batch", "2.5"], "'2.5' is not a whole number"),
    "more samples than can be counted": (["inspect", "vgg16", "--batch", "9" * 20], "does not fit into 64 bits"),
    "no batch": (["inspect", "vgg16"], "Missing option '--batch'"),
    "no steps": (["train", "usernets:good", "--batch", "2", "--steps", "0"], "'0' is not a positive whole number"),
    "a misspelt unit": (["train", "vgg16", "--batch", "2", "--budget", "12 GiBs"], "cannot read '12 GiBs'"),
    "a device that is not here": (
        ["train", "usernets:good", "--batch", "2", "--device", "gtx"],
        "there is no device 'gtx' here: torch finds cpu",
    ),
    "a limit of a device": (
        ["train", "usernets:good", "--batch", "2", "--device", "cuda", "--budget", "60%", "--limit"],
        "--limit is a limit of a process's memory",
    ),
    "unknown hardware": (["inspect", "alexnet", "--batch", "2", "--hardware", "gtx9000"], "'gtx9000'"),
    "an unknown optimizer": (["inspect", "alexnet", "--batch", "2", "--optimizer", "lion"], "'lion' is none of sgd"),
    "an unknown strategy": (["train", "usernets:good", "--batch", "2", "--strategy", "magic"], "'magic'"),
    "a learning rate in words": (["train", "usernets:good", "--batch", "2", "--lr", "high"], "'high' is not a number"),
    "a learning rate of nothing": (["train", "usernets:good", "--batch", "2", "--lr", "0"], "'0' is not a positive"),
    "images too small": (["inspect", "vgg16", "--batch", "2", "--image-size", "8"], "32x32 at least, not 8x8"),
    "a directory that is not there": (["doctor", "--directory", "/no/such/place"], "'/no/such/place'"),
    "an unknown command": (["inspct"], "No such command 'inspct'"),
    "an unknown option": (["models", "--colour"], "No such option: --colour"),
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This machine's speeds are measured once for all tests here, and not remembered in the user's home."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def nets(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's own module in the current directory."""
    monkeypatch.setenv("VDNN_CACHE_DIR", str(cache))
    (tmp_path / "usernets.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "usernets", raising=False)
    return tmp_path


def run_vdnn(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "80", "NO_COLOR": "1"}
    command = [sys.executable, "-m", "vdnn", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_clear_error(mistake: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, words = MISTAKES[mistake]
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert words in err
    assert "Traceback" not in err
    assert err.count("error: ") == 1


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_json_mode_is_a_json_object(mistake: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, words = MISTAKES[mistake]
    assert main([*arguments, "--json"]) == 2
    assert words in json.loads(capsys.readouterr().out)["error"]


def test_a_budget_that_nothing_fits_says_which_budget_would(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "alexnet", "--batch", "2", "--hardware", "titan-x", "--budget", "1MB"]) == 2
    assert "Raise budget to at least" in capsys.readouterr().err


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "usernets:raises", "--batch", "2", "--debug"]) == 2
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert "OSError: no weights here" in err


def test_something_unexpected_names_its_type_and_the_way_to_see_more(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "usernets:buggy", "--batch", "2"]) == 1
    err = capsys.readouterr().err
    assert "unexpected" in err
    assert "Error: " in err
    assert "--debug" in err
    assert "Traceback" not in err


def test_an_interrupt_is_not_an_error_of_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "usernets:interrupted", "--batch", "2"]) == 130
    assert "interrupted" in capsys.readouterr().err


@dataclass
class WithNumber:
    steps: int = field(default=3, metadata=described("How many.", metavar="N"))


def test_an_option_that_is_no_text_needs_a_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments, "Options", WithNumber)
    with pytest.raises(AssertionError, match="steps is no text: READERS says how its words are read"):
        arguments._offered()
    monkeypatch.setitem(arguments.READERS, "steps", arguments.positive)
    assert arguments._offered()["steps"].default == 3


@pytest.mark.parametrize("command", ["models", "inspect", "plan", "explain", "compare", "fit", "train", "doctor"])
def test_every_help_ends_in_two_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert lines[-3] == "Examples:"
    assert all(line.startswith(f"vdnn {command}") for line in lines[-2:])


def test_models_lists_vgg16_with_its_published_size(capsys: pytest.CaptureFixture[str]) -> None:
    models = {model["name"]: model for model in answer(capsys, "models")["models"]}
    assert models["vgg16"]["num_parameters"] == 138_357_544


def test_inspect_finds_that_feature_maps_dominate_vgg16(capsys: pytest.CaptureFixture[str]) -> None:
    """The first observation of vDNN (MICRO 2016)."""
    profile = answer(capsys, "inspect", "vgg16", "--batch", "256", "--hardware", "titan-x")
    assert profile["dominant_role"] == "feature map"
    assert profile["predicted"]["peak_nbytes"] > profile["device_nbytes"]


def test_inspect_counts_the_state_of_adam(capsys: pytest.CaptureFixture[str]) -> None:
    profile = answer(capsys, "inspect", "alexnet", "--batch", "1", "--hardware", "titan-x", "--optimizer", "adam")
    roles = profile["predicted"]["nbytes_by_role"]
    assert roles["optimizer state"] >= 2 * roles["parameter"]


def test_inspect_in_text_shows_the_peak_and_the_plot(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "usernets:good", "--batch", "512", "--hardware", "titan-x"]) == 0
    out = capsys.readouterr().out
    assert "One training step peaks at" in out
    assert "▲" in out


def test_train_reports_a_measured_peak_and_step_time(capsys: pytest.CaptureFixture[str]) -> None:
    record = answer(capsys, "train", "usernets:good", "--batch", "8", "--steps", "2")
    totals = record["report"]["totals"]
    assert len(record["losses"]) == 2
    assert totals["measured"]["peak_nbytes"] > 0
    assert totals["measured"]["step_time_s"] > 0


def test_train_with_verify_is_equal_to_plain_pytorch(capsys: pytest.CaptureFixture[str]) -> None:
    record = answer(capsys, "train", "usernets:good", "--batch", "8", "--steps", "3", "--verify", "--optimizer", "adam")
    assert record["verified"]["equal"]
    assert record["verified"]["num_compared"] > 3 * 8


def test_train_names_the_ops_that_inexact_lets_sum_in_another_order(capsys: pytest.CaptureFixture[str]) -> None:
    """Within so little the weights' gradients are sums of sums: each whole one needs too much workspace."""
    arguments = ("train", "usernets:convolutions", "--batch", "16", "--steps", "1", "--strategy", "offload")
    [piece] = answer(capsys, *arguments, "--budget", "65%", "--inexact")["report"]["pieces"]
    assert piece["inexact"]


def test_an_inexact_run_cannot_be_verified(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "usernets:good", "--batch", "8", "--inexact", "--verify"]) == 2
    assert "--inexact allows other bits: leave one of them out" in capsys.readouterr().err


def test_verify_notices_a_difference(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "usernets:fickle", "--batch", "2", "--steps", "1", "--verify", "--json"]) == 1
    assert "step 1: loss" in json.loads(capsys.readouterr().out)["verified"]["differences"]


def test_the_same_seed_gives_the_same_losses(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("train", "usernets:good", "--batch", "8", "--steps", "2", "--seed", "7")
    assert answer(capsys, *arguments)["losses"] == answer(capsys, *arguments)["losses"]


def test_what_a_factory_prints_does_not_spoil_the_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(capsys, "inspect", "usernets:chatty", "--batch", "2", "--hardware", "titan-x")["num_ops"] > 0


def test_doctor_measures_this_machine(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    record = answer(capsys, "doctor", "--quick", "--directory", str(tmp_path))
    assert record["measurements"]["gemm_flops_per_s"] > 0
    assert record["measurements"]["disk"]["directory"] == str(tmp_path)


def test_help_answers_without_loading_torch() -> None:
    """Torch takes seconds to load; help is there at once."""
    program = "import sys; from vdnn.cli import main; main(['--help']); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "Usage: vdnn" in done.stdout


def test_a_real_process_fails_with_one_line_and_exit_code_2() -> None:
    done = run_vdnn("inspect", "vgg61", "--batch", "2")
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1


def test_a_real_process_prints_json_and_nothing_else() -> None:
    done = run_vdnn("train", "usernets:good", "--batch", "4", "--steps", "1", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["schema"] == "vdnn.train"


def test_train_shows_the_table_of_predicted_and_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["train", "usernets:good", "--batch", "4", "--steps", "2", "--verify"]) == 0
    out = capsys.readouterr().out
    assert "measured / predicted" in out
    assert "Equal to plain PyTorch bit for bit" in out
