"""What tests of the subcommands share: a user's own module in the current directory, and answers as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from capture_once import captured_once

from vdnn.cli import main

NETS = '''
import torch
from torch import nn

def loss(output):
    return output.square().mean()

def deep(batch):
    """Feature maps dominate: eight convolutions over one small image."""
    torch.manual_seed(0)
    layers = [layer for _ in range(8) for layer in (nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Dropout(0.1))]
    return nn.Sequential(nn.Conv2d(3, 8, 3), *layers), torch.randn(batch, 3, 18, 18), loss

def wide(batch):
    """As deep, with another number of channels in the middle."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 8, 3, padding=1), nn.ReLU()]
    return nn.Sequential(nn.Conv2d(3, 8, 3), *layers), torch.randn(batch, 3, 18, 18), loss
'''

DEEP = "my_nets:deep"
ON_TITAN_X = ("--hardware", "titan-x")


def place_nets(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`my_nets` can be imported. This machine is measured once for all tests, and not remembered in the user's home."""
    monkeypatch.setenv("VDNN_CACHE_DIR", str(directory.parent / "vdnn-cache"))
    (directory / "my_nets.py").write_text(NETS)
    monkeypatch.chdir(directory)
    monkeypatch.syspath_prepend(str(directory))
    monkeypatch.delitem(sys.modules, "my_nets", raising=False)


def run(*arguments: str) -> int:
    """The exit code of a command about a network, which is captured once for all commands about it."""
    _, network, *_ = arguments
    with captured_once(network):
        return main(list(arguments))


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert run(*arguments, "--json") == 0
    return json.loads(capsys.readouterr().out)


def text(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int, *arguments: str) -> str:
    """What a terminal of so many columns shows."""
    monkeypatch.setenv("COLUMNS", str(columns))
    assert run(*arguments) == 0
    return capsys.readouterr().out


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    return err
