"""The device for tests, in a process of its own: nothing of this run sees an accelerator because of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import device

TESTS = Path(__file__).parents[1]


BEHAVIOUR = {
    "cpu/test_mixed_precision.py": ("-k", "superneurons or narrow"),
    "cpu/test_virtualize_gradients.py": ("--default-device",),
    "device/test_arena.py": ("-m", "slow"),
}
"""Tests of what vdnn does wherever it computes, as far as they are asked on the device for tests, and how."""


def run_there(*files: str, options: tuple[str, ...] = ()) -> str:
    """What pytest prints of these files, in a process whose accelerator is the device for tests."""
    try:
        device.built()
    except device.NoDevice as reason:
        pytest.skip(str(reason))
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--device", device.NAME, *options]
    paths = [str(TESTS / file) for file in files]
    done = subprocess.run([*command, *paths], cwd=TESTS.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.timeout(900)
def test_what_needs_an_accelerator_passes_on_the_device_for_tests() -> None:
    assert "skipped" not in run_there("device", "gpu", "cpu/test_accelerator.py", options=("-m", "not slow"))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("file", BEHAVIOUR)
def test_what_vdnn_does_it_does_on_the_device_for_tests(file: str) -> None:
    run_there(file, options=BEHAVIOUR[file])


@pytest.mark.skipif(device.is_loaded(), reason="this run has loaded it")
def test_importing_the_device_changes_nothing() -> None:
    assert torch.accelerator.current_accelerator() is None
    assert not hasattr(torch, device.NAME)
