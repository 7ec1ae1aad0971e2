"""Bytes and seconds, in and out."""

from __future__ import annotations

import pytest

from vdnn.units import GiB, KiB, format_nbytes, format_seconds, parse_nbytes


@pytest.mark.parametrize(
    ("amount", "nbytes"),
    [
        (4096, 4096),
        ("4096", 4096),
        ("12GiB", 12 * GiB),
        ("1.5 GB", 1_500_000_000),
        (" 2 kib ", 2 * KiB),
        (".5KiB", 512),
    ],
)
def test_what_people_type_becomes_bytes(amount: int | str, nbytes: int) -> None:
    assert parse_nbytes(amount) == nbytes


@pytest.mark.parametrize("amount", ["", "GiB", "12 gigs", "-3GiB", "1e9", "1.2.3GB"])
def test_text_that_is_no_amount_is_refused_with_the_units(amount: str) -> None:
    with pytest.raises(ValueError, match="KiB, MiB, GiB, TiB"):
        parse_nbytes(amount)


@pytest.mark.parametrize("amount", [True, 1.5, None])
def test_an_amount_is_a_whole_number_or_text(amount: object) -> None:
    with pytest.raises(ValueError, match="whole number of bytes"):
        parse_nbytes(amount)  # type: ignore[arg-type]


def test_a_negative_number_of_bytes_is_refused() -> None:
    with pytest.raises(ValueError, match="negative: -1"):
        parse_nbytes(-1)


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.50 KiB"), (11.25 * GiB, "11.25 GiB"), (-2 * KiB, "-2.00 KiB")],
)
def test_bytes_read_in_the_largest_unit_that_fits(nbytes: float, text: str) -> None:
    assert format_nbytes(nbytes) == text


@pytest.mark.parametrize(("seconds", "text"), [(1.25, "1.25 s"), (0.0032, "3.20 ms"), (7e-6, "7.0 us"), (0, "0.0 us")])
def test_seconds_read_in_the_unit_a_person_would_pick(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text
