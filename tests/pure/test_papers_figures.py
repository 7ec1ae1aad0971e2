"""Figures and tables: a published figure comes with its certainty."""

from __future__ import annotations

import json

import pytest

from vdnn.papers.paper_table import (
    BLANK,
    Certainty,
    PaperRow,
    Table,
    count,
    mebibytes,
    percent,
    percents,
    said,
    seconds,
)

ROW = PaperRow(("AlexNet",), (count(14),), (said("14", 14),), Certainty.SECOND_HAND, "equal")


def test_a_published_figure_of_unknown_certainty_is_refused() -> None:
    with pytest.raises(ValueError, match=r"published \['14'\] but unknown"):
        PaperRow(("AlexNet",), (count(14),), (said("14"),))


def test_a_certainty_without_a_figure_is_refused() -> None:
    with pytest.raises(ValueError, match="but second hand"):
        PaperRow(("AlexNet",), (count(14),), (BLANK,), Certainty.SECOND_HAND)


def test_a_row_that_does_not_fit_its_table_is_refused() -> None:
    with pytest.raises(ValueError, match="does not fit the heads"):
        Table("Replays", ("network",), ("speed", "memory"), ("speed",), (ROW,))


def test_a_head_that_occurs_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="a head occurs twice"):
        Table("Replays", ("network",), ("speed", "speed"), ("speed",), ())


def test_a_table_becomes_json() -> None:
    table = Table("Replays", ("network",), ("replays",), ("published",), (ROW,), "Counted.")
    assert json.loads(json.dumps(table.to_dict())) == {
        "title": "Replays",
        "note": "Counted.",
        "rows": [
            {
                "what": {"network": "AlexNet"},
                "ours": {"replays": {"value": 14, "text": "14"}},
                "published": {"published": {"value": 14, "text": "14"}},
                "certainty": "second hand",
                "why": "equal",
            }
        ],
    }


def test_figures_carry_their_number_and_their_words() -> None:
    assert mebibytes(4 * (200 * 96 * 55 * 55 * 4)).text == "886.230 MiB"
    assert percent(-0.34, signed=True).text == "-34.0 %"
    assert percents([0.5, 0.25]).text == "25.0-50.0 %"
    assert (seconds(0.0612).text, seconds(1.2345).text) == ("61.2 ms", "1.23 s")
