"""`vdnn train --device`: on the device, beside plain PyTorch there."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

from vdnn.cli import main

NET = """
import torch
from torch import nn

def net(batch):
    layers = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.2), nn.Flatten()
    return nn.Sequential(*layers), torch.randn(batch, 3, 8, 8), lambda output: output.square().mean()
"""


@pytest.mark.parametrize("index", [0, 1])
def test_the_command_trains_on_a_device_bit_for_bit(
    index: int,
    vdev: ModuleType,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "nets_of_mine.py").write_text(NET)
    monkeypatch.syspath_prepend(str(tmp_path))
    place = ["--device", f"vdev:{index}"]
    assert main(["train", "nets_of_mine:net", "--batch", "8", "--steps", "2", "--verify", "--json", *place]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["verified"]["equal"]
    assert record["verified"]["num_compared"] > 0
    device = record["report"]["process"]["device"]
    assert device["name"] == f"vdev:{index}"
    assert 0 < device["peak_allocated_nbytes"] <= device["peak_reserved_nbytes"] <= device["nbytes"]


def test_a_device_with_too_high_an_index_is_named_with_those_there_are(
    vdev: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "alexnet", "--batch", "2", "--device", "vdev:7"]) == 2
    assert "there is no device 'vdev:7' here: torch finds cpu, vdev:0, vdev:1" in capsys.readouterr().err
