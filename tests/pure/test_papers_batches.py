"""A step at any batch from two of them, and the search for the largest that fits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vdnn.hardware.presets import preset
from vdnn.papers.batches import Scaled, fits, guess, largest
from vdnn.papers.superneurons_networks import alexnet, resnet
from vdnn.papers.vdnn_networks import googlenet, vgg


@pytest.mark.parametrize("batch", [1, 8, 9, 37, 256])
def test_a_step_at_any_batch_follows_from_two(batch: int) -> None:
    scaled = Scaled(8, vgg(16, 8), vgg(16, 9)).at(batch)
    made = vgg(16, batch)
    assert (scaled.ops, scaled.values, scaled.storages) == (made.ops, made.values, made.storages)


def test_two_different_networks_are_not_one_at_two_batches() -> None:
    with pytest.raises(ValueError, match="is another program with 9 samples than with 8"):
        Scaled(8, vgg(16, 8), googlenet(9))


@given(most=st.integers(0, 5000), start=st.integers(1, 5000))
def test_the_largest_is_found_from_anywhere(most: int, start: int) -> None:
    assert largest(lambda size: size <= most, start) == most


def test_a_good_start_needs_two_tries() -> None:
    tried: list[int] = []

    def fits_up_to_100(size: int) -> bool:
        tried.append(size)
        return size <= 100

    assert largest(fits_up_to_100, 100) == 100
    assert tried == [100, 101]


@pytest.mark.parametrize("strategy", ["keep-all", "superneurons"])
def test_the_guess_is_within_a_batch_of_the_truth(strategy: str) -> None:
    machine = preset("k40c")
    start = guess(lambda batch: alexnet(batch), machine, strategy, (8, 16))
    assert fits(alexnet(start - 1), machine, strategy)
    assert not fits(alexnet(start + 2), machine, strategy)


def test_what_does_not_fit_by_the_floor_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(problem: object, strategy: str) -> None:
        raise AssertionError("the floor is above the budget, so no plan is to be made")

    monkeypatch.setattr("vdnn.papers.batches.solve", never)
    assert not fits(resnet(50, 5000), preset("k40c"), "superneurons")
