"""The arithmetic of hybrid parallelism (Pal et al., IEEE Micro 2019)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vdnn.papers.hybrid_reproduced import EPOCHS, FITTED_EPOCHS_128, inception, tables
from vdnn.papers.hybrid_tables import (
    Convergence,
    data_parallel_speedup,
    epoch_ratio_of_gain,
    first_winning_devices,
    hybrid_gain,
    hybrid_speedup,
    ring_efficiency,
    time_to_converge,
    winning_epoch_ratio,
)
from vdnn.papers.paper_table import Certainty

REMEMBERED = Convergence({32: 4.0, 64: 7.0, 128: 12.0, 256: 23.0})


@pytest.mark.parametrize(
    ("devices", "alone", "hybrid", "gain"),
    [(32, 32.0, 21.1, -0.34), (64, 36.6, 42.2, 0.155), (128, 42.7, 48.3, 0.131), (256, 44.5, 56.3, 0.265)],
)
def test_inception_on_many_gpus(devices: int, alone: float, hybrid: float, gain: float) -> None:
    assert data_parallel_speedup(devices, REMEMBERED) == pytest.approx(alone, abs=0.05)
    assert hybrid_speedup(devices, 2, 1.32, REMEMBERED) == pytest.approx(hybrid, abs=0.05)
    assert hybrid_gain(devices, 2, 1.32, REMEMBERED) == pytest.approx(gain, abs=0.0005)


@pytest.mark.parametrize(("speedup", "ratio"), [(1.32, 1.515), (1.15, 1.739), (1.22, 1.639)])
def test_two_devices_per_worker_win_beyond_a_ratio_of_epochs(speedup: float, ratio: float) -> None:
    assert winning_epoch_ratio(2, speedup) == pytest.approx(ratio, abs=0.0005)


def test_time_to_converge_is_time_per_step_times_steps_times_epochs() -> None:
    assert time_to_converge(0.5, 100, 3) == 150


def test_a_gain_of_22_percent_over_a_split_of_1_22_means_that_twice_the_workers_gain_nothing() -> None:
    assert epoch_ratio_of_gain(0.22, 2, 1.22) == pytest.approx(2)


def test_hybrid_begins_to_win_at_64_gpus() -> None:
    assert first_winning_devices((16, 32, 64, 128), 2, 1.32, REMEMBERED) == 64


def test_hybrid_never_wins_where_epochs_do_not_grow() -> None:
    assert first_winning_devices((2, 4, 8), 2, 1.9, Convergence({8: 4.0})) is None


@given(ratio=st.floats(1, 4), speedup=st.floats(1, 2), split=st.sampled_from((2, 4)), workers=st.integers(1, 64))
def test_the_condition_and_the_speedups_agree(ratio: float, speedup: float, split: int, workers: int) -> None:
    convergence = Convergence({workers: 4.0, split * workers: 4.0 * ratio})
    gain = hybrid_gain(split * workers, split, speedup, convergence)
    assert (1 + gain) == pytest.approx(ratio / winning_epoch_ratio(split, speedup))


def test_epochs_between_two_known_numbers_lie_on_a_line_in_logarithms() -> None:
    assert Convergence({64: 7.0, 256: 28.0}).at(128) == pytest.approx(14)


def test_fewer_workers_than_known_need_the_fewest_epochs() -> None:
    assert Convergence({32: 4.0, 64: 7.0}).at(1) == 4


def test_epochs_beyond_what_is_known_are_refused() -> None:
    with pytest.raises(ValueError, match="known up to 64 workers, not for 65"):
        Convergence({64: 7.0}).at(65)


def test_epochs_of_no_workers_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 worker"):
        Convergence({0: 7.0})


def test_devices_that_do_not_divide_into_workers_are_refused() -> None:
    with pytest.raises(ValueError, match="7 devices are not whole workers of 2"):
        hybrid_speedup(7, 2, 1.3, REMEMBERED)


def test_an_exchange_as_long_as_the_step_halves_the_efficiency() -> None:
    """Two workers move the gradients once over each link."""
    efficiency = ring_efficiency(1.0, 10**9, 1e9)
    assert efficiency(1) == 1
    assert efficiency(2) == pytest.approx(0.5)


def test_worse_scaling_moves_the_point_where_hybrid_wins() -> None:
    efficiency = ring_efficiency(1.0, 10**9, 1e9)
    steady = Convergence({64: 4.0})
    assert hybrid_gain(2, 2, 1.32, steady) < 0 < hybrid_gain(2, 2, 1.32, steady, efficiency)


def test_no_row_that_rests_on_the_fitted_epochs_looks_like_a_confirmation() -> None:
    assert 128 not in EPOCHS
    for row in inception().rows:
        rests_on_the_fit = FITTED_EPOCHS_128 in (row.ours[0].value, row.ours[1].value)
        assert rests_on_the_fit == ("confirms nothing" in row.why)
        assert not rests_on_the_fit or row.certainty in (Certainty.FITTED, Certainty.UNKNOWN)


def test_every_table_can_be_made() -> None:
    assert [table.title for table in tables()][1] == "Inception-V3 on N GPUs"
