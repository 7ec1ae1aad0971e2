"""A budget in words becomes bytes, and one that cannot be meant is refused with the way to say it."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from vdnn.errors import InvalidInput
from vdnn.options import Options
from vdnn.plan.model.budget import least_share, parse_share, resolve_budget
from vdnn.units import MiB, Nbytes, parse_budget, parse_nbytes

PEAK = 10_007


@pytest.mark.parametrize(
    ("budget", "nbytes"),
    [
        (None, None),
        (4096 * MiB, 4096 * MiB),
        (Nbytes(4096), 4096),
        ("4096B", 4096),
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


@pytest.mark.parametrize("budget", ["0.9x", 0.9])
def test_what_is_no_budget_is_answered_with_amounts_and_a_share(budget: Any) -> None:
    with pytest.raises(InvalidInput, match=r"'12GiB'.* share of what keeping everything takes, as in '45%'"):
        Options(budget=budget)
    with pytest.raises(InvalidInput, match=r"'12GiB'(?!.*share)"):
        Options(disk_budget=budget)


@pytest.mark.parametrize("offered", ["12GiB", "1.5 GB", "4096B"])
def test_an_amount_that_is_offered_is_taken(offered: str) -> None:
    with pytest.raises(InvalidInput, match=f"'{offered}'"):
        parse_budget("0.9x")
    assert Options(budget=offered).budget == offered


def test_an_amount_that_cannot_be_read_is_refused_with_the_units() -> None:
    with pytest.raises(ValueError, match="Units: B, KiB"):
        resolve_budget("a lot", PEAK)


@pytest.mark.parametrize(
    ("budget", "question"),
    [(12, "12GiB"), ("12", "12GiB"), (" 2048 ", "2048GiB"), (4096, "4096MiB"), (MiB - 1, "1048575MiB"), ("0.5e", None)],
)
def test_a_number_alone_that_is_too_small_for_any_budget_is_asked_back(budget: int | str, question: str | None) -> None:
    words = f"did you mean {question}\\? .*B' for that many bytes" if question else "cannot read"
    with pytest.raises(InvalidInput, match=words):
        resolve_budget(budget, PEAK)


@pytest.mark.parametrize("budget", [0, "0", MiB, str(MiB), "12B", "12 b", Nbytes(12), "1.5KiB"])
def test_an_amount_with_its_unit_is_taken_at_its_word(budget: int | str) -> None:
    assert parse_budget(budget) == parse_nbytes(budget)


@pytest.mark.parametrize("option", [field.name for field in fields(Options) if field.name.endswith("budget")])
def test_every_option_that_bounds_asks(option: str) -> None:
    with pytest.raises(InvalidInput, match=r"a budget of 12 is 12 bytes: did you mean 12GiB\?"):
        Options(**{option: 12})  # type: ignore[arg-type]


@pytest.mark.parametrize(("nbytes", "share"), [(1, "0.1%"), (4503, "45%"), (4504, "45.1%"), (PEAK, "100%"), (0, "0%")])
def test_the_least_share_that_is_enough(nbytes: int, share: str) -> None:
    assert least_share(nbytes, PEAK) == share
    assert nbytes == 0 or (resolve_budget(share, PEAK) or 0) >= nbytes
