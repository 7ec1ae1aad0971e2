"""A budget in words becomes bytes, and one that cannot be meant is refused with the way to say it."""

from __future__ import annotations

import pytest

from vdnn.errors import InvalidInput
from vdnn.plan.model.budget import parse_share, resolve_budget

PEAK = 10_007


@pytest.mark.parametrize(
    ("budget", "nbytes"),
    [
        (None, None),
        (4096, 4096),
        ("4KiB", 4096),
        ("45%", 4503),
        (" 62.5 % ", 6254),
        ("100%", PEAK),
        ("150%", 15_010),
        (".5%", 50),
    ],
)
def test_a_budget_is_bytes_an_amount_or_a_share_of_the_keep_all_peak(
    budget: int | str | None, nbytes: int | None
) -> None:
    assert resolve_budget(budget, PEAK) == nbytes


@pytest.mark.parametrize("budget", ["abc%", "-5%", "%", "45%%", "4 5%", "45% of it"])
def test_a_share_that_cannot_be_read_is_answered_with_one_that_can(budget: str) -> None:
    with pytest.raises(InvalidInput, match=r"cannot read .* as a share of the keep-all peak.*'45%'.*'12GiB'"):
        resolve_budget(budget, PEAK)


@pytest.mark.parametrize("budget", ["0%", "0.0 %"])
def test_a_share_of_nothing_is_refused(budget: str) -> None:
    with pytest.raises(InvalidInput, match=r"leaves no byte to train in: write a share above 0%"):
        resolve_budget(budget, PEAK)


@pytest.mark.parametrize("budget", [None, 4096, "12GiB", "nonsense"])
def test_what_has_no_percent_sign_is_no_share(budget: int | str | None) -> None:
    assert parse_share(budget) is None


def test_an_amount_that_cannot_be_read_is_refused_with_the_units() -> None:
    with pytest.raises(ValueError, match="Units: B, KiB"):
        resolve_budget("a lot", PEAK)
