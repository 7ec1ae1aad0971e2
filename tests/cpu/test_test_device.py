"""The device for tests, in a process of its own: nothing of this run sees an accelerator because of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import device

TESTS = Path(__file__).parents[1]


SPREAD = (
    "test_tiny.py",
    "cpu/test_virtualize_gradients.py",
    "cpu/test_offload_training.py",
    "cpu/test_networks_within_limits.py",
)
"""A few files of the suite. `make test-all` asks all of it of the device: `pytest --device vdev`."""


def run_there(*files: str) -> str:
    """What pytest prints of these files, in a process whose accelerator is the device for tests."""
    try:
        device.built()
    except device.NoDevice as reason:
        pytest.skip(str(reason))
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--device", device.NAME, "-m", "not slow"]
    paths = [str(TESTS / file) for file in files]
    done = subprocess.run([*command, *paths], cwd=TESTS.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.timeout(900)
def test_what_needs_an_accelerator_passes_on_the_device_for_tests() -> None:
    files = "cpu/test_accelerator.py", "cpu/test_codecs_on_device.py", "cpu/test_stream_transfers.py"
    assert "skipped" not in run_there("device", *files)


@pytest.mark.timeout(900)
def test_what_vdnn_does_it_does_on_the_device_for_tests() -> None:
    assert "skipped" not in run_there(*SPREAD)


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is one here")
def test_an_accelerator_that_is_not_here_is_refused_by_name() -> None:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "--device",
        "cuda",
        str(TESTS / "test_tiny.py"),
    ]
    done = subprocess.run(command, cwd=TESTS.parent, capture_output=True, text=True)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--device cuda: torch finds no accelerator here" in done.stderr


@pytest.mark.skipif(device.is_loaded(), reason="this run has loaded it")
def test_importing_the_device_and_collecting_its_tests_changes_nothing() -> None:
    assert torch.accelerator.current_accelerator() is None
    assert not hasattr(torch, device.NAME)
