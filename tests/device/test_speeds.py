"""What is measured of an accelerator is what it is, here as fast as a test turns its links."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
import torch

from vdnn.calibrate.accelerator_speeds import AcceleratorTrials, accelerator_hardware, measure_accelerator
from vdnn.calibrate.machine_speeds import QUICK, measure_machine
from vdnn.calibrate.this_machine import this_machine
from vdnn.units import GiB, MiB

WHERE = "vdev:0"
TRIALS = AcceleratorTrials(gemm_dim=256, copy_nbytes=MiB, link_nbytes=8 * MiB, num_copies=4)


@pytest.mark.parametrize("rate", [100e6, 400e6])
def test_the_links_of_a_device_are_found_as_fast_as_they_are(rate: float, vdev: ModuleType) -> None:
    vdev.set_copy_rate(rate)
    found = measure_accelerator(torch.device(WHERE), TRIALS)
    for bandwidth in (
        found.to_host.bandwidth_bytes_per_s,
        found.to_device.bandwidth_bytes_per_s,
        found.both_to_host_bytes_per_s,
        found.both_to_device_bytes_per_s,
    ):
        assert 0.4 * rate < bandwidth < 1.1 * rate  # other processes may hold a copy up, and nothing speeds it up


def test_a_device_has_its_memory_then_the_hosts_then_the_disk(vdev: ModuleType, tmp_path: Path) -> None:
    vdev.set_limit(GiB)
    machine = accelerator_hardware(
        measure_accelerator(torch.device(WHERE), TRIALS), measure_machine(str(tmp_path), QUICK)
    )
    assert [tier.name for tier in machine.tiers] == ["device", "host", "disk"]
    assert machine.device.nbytes == GiB
    assert [link.name for link in machine.links] == ["device->host", "host->device", "host->disk", "disk->host"]
    assert {name for name, _ in machine.sources} >= {link.name for link in machine.links}


def test_a_device_is_measured_once_and_remembered(
    vdev: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VDNN_CACHE_DIR", str(tmp_path))
    first = this_machine(str(tmp_path), WHERE)
    vdev.set_copy_rate(1e6)  # measured again it would be another, and take minutes
    vdev.set_limit(GiB)
    again = this_machine(str(tmp_path), WHERE)
    assert (again.links, again.codecs) == (first.links, first.codecs)
    assert again.device.nbytes == GiB


def test_a_device_without_room_is_taken_for_another_and_says_so(
    vdev: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("VDNN_CACHE_DIR", str(tmp_path))
    vdev.set_limit(MiB)
    found = this_machine(str(tmp_path), WHERE)
    assert found.device.nbytes == MiB
    assert dict(found.sources)["device->host"] == "assumed: as titan-x"
    assert "too full to be measured" in caplog.text
