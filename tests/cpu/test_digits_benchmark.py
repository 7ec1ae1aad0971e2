"""The benchmark on handwritten digits, in small: it trains, and its two ways of rounding differ where they should."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch


@pytest.fixture
def digits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    pytest.importorskip("sklearn", reason="the digits come with scikit-learn, of the development extra")
    monkeypatch.setenv("VDNN_CACHE_DIR", str(tmp_path))
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import digits

    return sys.modules[digits.__name__]


@pytest.mark.slow
def test_a_few_epochs_with_delayed_fp16_learn_more_than_guessing(digits: ModuleType) -> None:
    outcome = digits.train(digits.Method("delayed", "fp16"), digits.digits(seed=0, num_images=400), seed=0, epochs=4)
    assert outcome.accuracy > 0.3


def test_delayed_rounding_leaves_the_loss_of_the_first_step_exact(digits: ModuleType) -> None:
    sample = next(digits.batches(digits.digits(seed=0, num_images=200), seed=0, epochs=1))
    losses = []
    for method in (digits.Method("exact", "fp32"), digits.Method("delayed", "fp8")):
        losses.append(digits.step_of(digits.network(seed=0), method, sample)(*sample))
    assert torch.equal(losses[0], losses[1])


def test_immediate_rounding_changes_the_loss_of_the_first_step(digits: ModuleType) -> None:
    sample = next(digits.batches(digits.digits(seed=0, num_images=200), seed=0, epochs=1))
    exact = digits.step_of(digits.network(seed=0), digits.Method("exact", "fp32"), sample)(*sample)
    rounded = digits.step_of(digits.network(seed=0, immediate="fp8"), digits.Method("immediate", "fp8"), sample)(
        *sample
    )
    assert not torch.equal(exact, rounded)


@pytest.mark.slow
def test_delayed_fp8_brings_the_gradient_an_error_between_nothing_and_a_fifth(digits: ModuleType) -> None:
    outcome = digits.train(digits.Method("delayed", "fp8"), digits.digits(seed=0, num_images=200), seed=0, epochs=1)
    assert 0 < outcome.gradient_error < 0.2
