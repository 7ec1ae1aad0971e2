"""The device for tests, in a process of its own: nothing of this run sees an accelerator because of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import device

TESTS = Path(__file__).parents[1]


def test_what_needs_an_accelerator_passes_on_the_device_for_tests() -> None:
    try:
        device.built()
    except device.NoDevice as reason:
        pytest.skip(str(reason))
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--device", device.NAME]
    done = subprocess.run(
        [*command, str(TESTS / "device"), str(TESTS / "gpu")], cwd=TESTS.parent, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert "skipped" not in done.stdout


@pytest.mark.skipif(device.is_loaded(), reason="this run has loaded it")
def test_importing_the_device_changes_nothing() -> None:
    assert torch.accelerator.current_accelerator() is None
    assert not hasattr(torch, device.NAME)
