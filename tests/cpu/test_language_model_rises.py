"""A language model of `transformers` keeps its bytes, with its loss inside or outside, and trains bit for bit."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from control_group import group as group  # a fixture

from vdnn.runtime.process_memory import in_default_child
from vdnn.runtime.step_memory.library import step_library
from vdnn.units import MiB

pytest.importorskip("transformers", reason="transformers is not installed: pip install -e '.[dev]'")

from language_model_rises import Loss, Trained, loss_inside, loss_outside, train

LOSSES = pytest.mark.parametrize("loss", [loss_inside, loss_outside])


@cache
def plainly(loss: Loss) -> Trained:
    return in_default_child(train, loss, None, None)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux tells what a process takes")
@LOSSES
@pytest.mark.parametrize("budget", [300 * MiB, "60%"])
def test_a_language_model_trains_bit_for_bit_and_rises_by_its_budget_and_little_more(
    loss: Loss, budget: int | str, group: Path | None
) -> None:
    """A number of bytes is a limit that the kernel holds, where control groups can be made. What a loss outside takes
    is known after the first step, which warns."""
    if step_library().functions is None:
        pytest.skip(step_library().missing)
    is_known_at_once = loss is loss_inside
    found = in_default_child(train, loss, budget, group if isinstance(budget, int) and is_known_at_once else None)
    assert found.digests == plainly(loss).digests
    assert found.steady_nbytes <= found.allowed_nbytes
    if is_known_at_once:
        assert found.first_nbytes <= found.allowed_nbytes
