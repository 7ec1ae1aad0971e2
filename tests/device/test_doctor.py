"""`vdnn doctor` tells an accelerator's memory, links and codecs beside the machine's."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest
import torch

from vdnn.cli import main
from vdnn.units import GiB, MiB


def asked(folder: Path, capsys: pytest.CaptureFixture[str], *more: str) -> str:
    assert main(["doctor", "--quick", "--directory", str(folder), *more]) == 0
    return capsys.readouterr().out


def test_doctor_measures_the_accelerator(vdev: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vdev.set_limit(GiB)
    vdev.set_others(100 * MiB)
    vdev.set_copy_rate(400e6)
    kept_nbytes = torch.accelerator.memory_reserved()  # by tests before this one, in this process
    found = json.loads(asked(tmp_path, capsys, "--json"))["accelerator"]
    speeds, hardware = found["measurements"], found["hardware"]
    assert (speeds["device"], speeds["nbytes"]) == ("vdev:0", GiB)
    assert 924 * MiB - kept_nbytes <= speeds["free_nbytes"] <= 924 * MiB
    assert speeds["is_pinned"]
    for rate in ("both_to_host_bytes_per_s", "both_to_device_bytes_per_s"):
        assert 100e6 < speeds[rate] < 450e6
    assert [tier["name"] for tier in hardware["tiers"]] == ["device", "host", "disk"]
    assert {"bool", "sparse"} & {codec["name"].split("-")[0] for codec in speeds["codecs"]}


def test_doctor_says_it_in_words(vdev: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vdev.set_most_pinned(0)
    text = asked(tmp_path, capsys)
    for words in (
        "vdev:0, vdev: 4.00 GiB free of 4.00 GiB",
        "copy to the host (none page-locked) beside compute",
        "both at once, to the host and from it",
        "compute lost while it runs",
    ):
        assert words in text


def test_doctor_tells_the_machine_where_the_accelerator_cannot_be_measured(
    vdev: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vdev.set_limit(torch.accelerator.memory_reserved() + MiB)
    assert "vdev cannot be measured: vdev out of memory" in asked(tmp_path, capsys)
